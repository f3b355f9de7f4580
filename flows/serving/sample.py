"""A clip for visitors who have none at hand: the first of the test split that the run has here, else one that is drawn."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from storage.catalogue import Catalogue
from storage.datasets.demo import draw_clip
from storage.datasets.demo_scene import DemoOptions

if TYPE_CHECKING:  # the server's process does without torch
    from flows.caption import VideoCaptioner


def clip_of_test_split(captioner: VideoCaptioner) -> dict[str, Any] | None:
    """A whole file of the test split with what people wrote of it; None if there is none on this machine."""
    run, workspace = captioner.run, captioner.trained.workspace
    done = workspace.done(*run.results["catalogue"][0]) if "catalogue" in run.results else None
    if done is None:
        return None
    table = Catalogue(workspace.root / done.ref.uri, Path(run.data))
    for id in table.ids("test"):
        if table.records[id].segment is None and id in table.usable_keys and (path := table.path_of(id)).is_file():
            about = f"A clip of the test split of {run.dataset}: the captioner did not learn from it."
            return {"path": str(path), "name": path.name, "about": about, "captions": table.captions_of.get(id, [])}
    return None


def drawn_clip(folder: Path) -> dict[str, Any]:
    """A clip of moving shapes, drawn into `folder`."""
    options = DemoOptions(train=1, val=0, test=1)
    clip = options.plan()[-1]
    path = folder / f"{clip.id}.mp4"
    path.write_bytes(draw_clip(clip, options))
    about = "A clip of moving shapes, drawn by this server. A captioner that learned from other videos has never seen the like."
    captions = [caption.text for caption in clip.captions if caption.kind == "good"]
    return {"path": str(path), "name": path.name, "about": about, "captions": captions}
