"""A data set folder with captions and empty videos."""

from __future__ import annotations

import json
from pathlib import Path


def captions_folder(root: Path, rows: list[tuple[str, str, str]]) -> Path:
    """rows: (video, split, caption)"""
    root.mkdir(exist_ok=True)
    lines = [json.dumps({"video": video, "split": split, "caption": text}) for video, split, text in rows]
    (root / "captions.jsonl").write_text("\n".join(lines))
    for video in {row[0] for row in rows}:
        (root / f"{video}.mp4").write_bytes(b"")
    return root
