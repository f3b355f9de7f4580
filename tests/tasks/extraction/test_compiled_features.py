"""Features of compiled nets: a key and a store of their own; rows that depend on their own video alone."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from storage.errors import BadInput
from storage.files.hashing import digest
from storage.media.frame_sampling import Uniform
from storage.media.probe import probe
from storage.workspace import Workspace
from tasks.extraction.engine import Video
from tasks.extraction.extractors import BackboneFeature, find_source
from tasks.extraction.nets import open_net
from tests.storage.clips import make_clip
from tests.tasks.extraction.toy_extraction import IN_PROCESS, ToyExtraction, same_rows

NET = {"net": "timm:test_resnet", "weights": "random"}


def test_a_compiled_net_has_a_key_of_its_own_and_others_keep_theirs(workspace: Workspace) -> None:
    sampling = Uniform(frames=7)

    def source(**options: str) -> tuple[str, str]:
        feature = BackboneFeature.model_validate(NET | options)
        found = find_source(workspace, "demo", "x", feature, {"frames": sampling}, None)
        return found.key, found.description

    plain, _ = source()
    parts = ("timm:test_resnet", "pooled", "keep", "random, seed 0", sampling.model_dump(mode="json"))
    assert plain == digest("backbone", 1, *parts), "rows of earlier versions stay fresh"
    kinds = [source(compiled="float32"), source(compiled="bfloat16")]
    assert len({plain, *(key for key, _ in kinds)}) == 3
    assert kinds[1][1].endswith("compiled, bfloat16")


@pytest.mark.skipif(shutil.which("g++") is None, reason="compiling needs g++")
def test_rows_of_a_compiled_net_depend_on_their_video_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "code"))
    paths = [make_clip(tmp_path / f"v{n}.mp4", 20 + 7 * n) for n in range(4)]
    videos = [Video(path.stem, path, None, probe(path)) for path in paths]
    plain = ToyExtraction(tmp_path / "plain", videos).add("x")
    plain.run()
    whole = ToyExtraction(tmp_path / "whole", videos).add("x", compiled="float32")
    assert all(result.bad is None for result in whole.run())
    backwards = ToyExtraction(tmp_path / "backwards", videos[::-1]).add("x", compiled="float32")
    backwards.run(IN_PROCESS.model_copy(update={"decoders": 2}))
    alone = ToyExtraction(tmp_path / "alone", videos[2:3]).add("x", compiled="float32")
    alone.run()
    rows, near = whole.rows("x"), plain.rows("x")
    assert len(rows) == 4 and same_rows(rows, backwards.rows("x")) and same_rows(rows, alone.rows("x"))
    for id, row in rows.items():
        assert np.allclose(row, near[id], rtol=2e-3, atol=2e-3 * float(np.abs(near[id]).max()))


def test_a_net_is_not_compiled_for_a_gpu() -> None:
    with pytest.raises(BadInput, match="leave 'compiled' out"):
        open_net(BackboneFeature.model_validate(NET | {"compiled": "float32"}), "random", None, "cuda", "auto")
