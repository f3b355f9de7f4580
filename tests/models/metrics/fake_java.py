"""A program that answers like a Java of some version."""

from __future__ import annotations

from pathlib import Path


def fake_java(folder: Path, says: str, code: int = 0) -> Path:
    path = folder / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho '{says}' >&2\nexit {code}\n")
    path.chmod(0o755)
    return path
