"""The engine: rows that depend on their own video alone, one forward pass for several outputs, failures that stay alone."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from models.backbones.zoo import open_backbone
from storage.errors import BadInput, BadMedia
from storage.features.store import FeatureStore
from storage.media import frame_stream as stream
from storage.media.frame_sampling import Clips, EveryNth, Times, Uniform
from storage.media.frame_stream import stream_frames
from storage.media.probe import Probe, probe
from tasks.extraction import engine
from tasks.extraction.engine import Video
from tasks.extraction.extractors import BackboneFeature
from tests import ROOT
from tests.storage.clips import make_clip
from tests.tasks.extraction.toy_extraction import IN_PROCESS, SEVEN_FRAMES, ToyExtraction, same_rows


@pytest.fixture
def videos(tmp_path: Path) -> list[Video]:
    paths = [make_clip(tmp_path / f"v{n}.mp4", 20 + 7 * n, tone=440.0 if n % 2 else None) for n in range(4)]
    return [Video(path.stem, path, None, probe(path)) for path in paths]


@pytest.mark.parametrize("net", ["timm:test_resnet", "timm:test_vit"])
def test_a_row_does_not_depend_on_order_company_or_processes(videos: list[Video], tmp_path: Path, net: str) -> None:
    whole = ToyExtraction(tmp_path / "whole", videos).add("x", net=net)
    assert all(result.bad is None for result in whole.run())
    backwards = ToyExtraction(tmp_path / "backwards", videos[::-1]).add("x", net=net)
    backwards.run(IN_PROCESS.model_copy(update={"decoders": 2}))
    alone = ToyExtraction(tmp_path / "alone", videos[2:3]).add("x", net=net)
    alone.run()
    rows = whole.rows("x")
    assert len(rows) == 4 and same_rows(rows, backwards.rows("x")) and same_rows(rows, alone.rows("x"))
    assert rows["v0"].shape[0] == 7 and len({rows[id].tobytes() for id in rows}) == 4


def test_outputs_of_one_net_come_from_one_pass(videos: list[Video], tmp_path: Path) -> None:
    extraction = ToyExtraction(tmp_path / "out", videos).add("pooled").add("grid", output="grid")
    extraction.add("spatial", output="grid", over_time="mean").add("classes", output="classes", over_time="mean")
    net = extraction.features[0].net
    assert all(feature.net is net for feature in extraction.features)
    seen: list[int] = []
    real: Callable = net.backbone.__class__.__call__

    def counting(self, items):
        seen.append(len(items))
        return real(self, items)

    net.backbone.__class__.__call__ = counting  # type: ignore[method-assign]
    try:
        extraction.run()
    finally:
        net.backbone.__class__.__call__ = real  # type: ignore[method-assign]
    assert len(set(seen)) == 1 and len(seen) == -(-28 // seen[0]), "28 frames in batches of one size"
    grid, spatial = extraction.rows("grid"), extraction.rows("spatial")
    assert grid["v1"].shape == (7, 25, 96) and spatial["v1"].shape == (25, 96)
    assert np.allclose(grid["v1"].astype(np.float64).mean(0), spatial["v1"], atol=2e-3)
    assert extraction.rows("classes")["v1"].shape == (1, 1000)
    assert np.isclose(extraction.rows("classes")["v1"].astype(np.float64).sum(), 1, atol=0.05)


def test_a_net_for_frames_sees_the_middle_one_of_a_clip(videos: list[Video], tmp_path: Path) -> None:
    extraction = ToyExtraction(tmp_path / "out", videos).add("frames").add("clips", Clips(positions=7, length=3, step=2))
    extraction.run()
    assert same_rows(extraction.rows("frames"), extraction.rows("clips")) and len(extraction.rows("clips")) == 4


def test_only_the_pending_rows_are_computed(videos: list[Video], tmp_path: Path) -> None:
    extraction = ToyExtraction(tmp_path / "out", videos).add("all").add("one", pending=["v2"], output="grid")
    results = extraction.run()
    assert [o.id for o in results if o.feature == "one"] == ["v2"]
    assert list(extraction.rows("one")) == ["v2"] and len(extraction.rows("all")) == 4


def test_a_video_without_sound_has_an_empty_row_and_a_mask(videos: list[Video], tmp_path: Path) -> None:
    extraction = (
        ToyExtraction(tmp_path / "out", videos).add("sound", None, net="vggish").add("mean", None, net="vggish", over_time="mean")
    )
    assert all(result.bad is None for result in extraction.run())
    assert {id: rows.shape for id, rows in extraction.rows("sound").items()} == {
        "v0": (0, 128),
        "v1": (1, 128),
        "v2": (0, 128),
        "v3": (1, 128),
    }
    view = FeatureStore.open(tmp_path / "out" / "mean").view()
    values, mask = view.read_batch(["v0", "v1"])
    assert mask.tolist() == [[False], [True]] and not values[0].any() and values[1].any()


def test_clips_go_through_a_net_for_clips(videos: list[Video], tmp_path: Path) -> None:
    extraction = ToyExtraction(tmp_path / "out", videos[:2]).add("motion", Clips(positions=2, length=16), net="r3d_18")
    extraction.run()
    assert extraction.rows("motion")["v0"].shape == (2, 512)
    with pytest.raises(BadInput, match="kind 'clips' or 'windows' with length 16"):
        ToyExtraction(tmp_path / "no", videos).add("motion", SEVEN_FRAMES, net="r3d_18")
    with pytest.raises(BadInput, match=r"no output 'regions'.*pooled, grid, classes"):
        ToyExtraction(tmp_path / "no", videos).add("look", output="regions")


def test_one_bad_video_fails_alone_in_the_features_it_concerns(videos: list[Video], tmp_path: Path) -> None:
    unreadable = replace(videos[0], probe=BadMedia("truncated", "cut off"))
    beyond = replace(videos[1], segment=(50.0, 60.0))
    extraction = ToyExtraction(tmp_path / "out", [unreadable, beyond, *videos[2:]]).add("eyes").add("ears", None, net="vggish")
    bad = {(o.feature, o.id): o.bad.kind for o in extraction.run() if o.bad}
    assert bad == {("eyes", "v0"): "truncated", ("ears", "v0"): "truncated", ("eyes", "v1"): "segment_outside"}
    assert set(extraction.rows("eyes")) == {"v2", "v3"}
    assert extraction.rows("ears")["v1"].shape == (0, 128)


def test_frames_that_were_only_promised_are_planned_again_without_a_trace(videos: list[Video], tmp_path: Path) -> None:
    real = videos[1].probe
    assert isinstance(real, Probe)
    longer = replace(real, frames=99, pts=np.arange(99) / 25, reader="pyav")
    told = ToyExtraction(tmp_path / "told", [videos[0], replace(videos[1], probe=longer), videos[2]]).add("x", EveryNth(stride=2))
    told.run(IN_PROCESS.model_copy(update={"batch": 2}))
    plain = ToyExtraction(tmp_path / "plain", videos[:3]).add("x", EveryNth(stride=2))
    plain.run(IN_PROCESS.model_copy(update={"batch": 2}))
    assert same_rows(told.rows("x"), plain.rows("x")) and len(told.rows("x")) == 3
    table = FeatureStore.open(tmp_path / "told" / "x").view().table().to_pylist()
    assert [row["video_id"] for row in table if row["damaged"]] == ["v1"]


def test_values_that_cannot_be_kept_are_refused_video_by_video(videos: list[Video], tmp_path: Path) -> None:
    import torch

    state = open_backbone("timm:test_resnet", None, 0).net.state_dict()
    torch.save({name: value * 1e4 if value.is_floating_point() else value for name, value in state.items()}, tmp_path / "w.pth")
    extraction = ToyExtraction(tmp_path / "out", videos).add("x", weights=str(tmp_path / "w.pth"))
    results = extraction.run()
    assert [o.bad.kind for o in results if o.bad] == ["not_finite"] * 4 and not extraction.rows("x")


LONG = """
import sys
from pathlib import Path
from storage.media.frame_sampling import EveryNth
from storage.media.probe import probe
from tasks.extraction import engine
from tasks.extraction.engine import Video
from tasks.extraction.extractors import BackboneFeature
from tasks.framework.runtime import Runtime
from tests.tasks.extraction.toy_extraction import ToyExtraction
path = Path(sys.argv[1])
extraction = ToyExtraction(path.parent / "out", [Video("long", path, None, probe(path))]).add("x", EveryNth(stride=1))
assert not [o for o in extraction.run(Runtime(decoders=2, device="cpu")) if o.bad]
assert extraction.rows("x")["long"].shape == (4000, 96)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_length_of_a_video(tmp_path: Path) -> None:
    """4,000 fitted frames are 300 MB (and 1.2 GB as floats); a short run of the same program is the measure."""
    peaks = {}
    for count in (40, 4000):
        path = make_clip(tmp_path / f"{count}.mp4", count, size=(640, 480))
        program = LONG.replace("(4000, 96)", f"({count}, 96)")
        subprocess.run([sys.executable, "-c", program, str(path)], cwd=ROOT, check=True)
        peaks[count] = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
        shutil.rmtree(tmp_path / "out")
    assert peaks[4000] - peaks[40] < 120e6, peaks


def dies_at(job: stream.DecodeJob) -> Iterator[stream.Event]:
    """One picture kills its decoder, and no other."""
    if job.path.stem == "p5":
        os.kill(os.getpid(), signal.SIGSEGV)
    yield from stream_frames(job)


def test_pictures_go_several_at_a_time_and_a_bad_one_fails_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    random, pictures = np.random.default_rng(0), []
    for n in range(11):
        path = tmp_path / f"p{n}.png"
        Image.fromarray(random.integers(0, 256, (40, 60, 3), np.uint8)).save(path)
        pictures.append(Video(path.stem, path, None, probe(path)))
    jobs = [stream.DecodeJob(v.path, {}, None, v.probe) for v in pictures if isinstance(v.probe, Probe)]
    assert [len(group.jobs) for group in stream.grouped(jobs)] == [8, 3]
    calm, disturbed = (ToyExtraction(tmp_path / name, pictures).add("x", Uniform(frames=1)) for name in ("calm", "disturbed"))
    calm.run()
    monkeypatch.setattr(engine, "stream_frames", dies_at)
    results = disturbed.run(IN_PROCESS.model_copy(update={"decoders": 2}))
    assert sorted(result.id for result in results) == sorted(v.id for v in pictures), "each is told once"
    ((bad),) = [result for result in results if result.bad]
    assert bad.id == "p5" and bad.bad is not None and bad.bad.kind == "crashed" and str(tmp_path / "p5.png") in bad.bad.reason
    assert len(disturbed.rows("x")) == 10 and same_rows(calm.rows("x"), disturbed.rows("x"))


def test_sound_that_is_aligned_with_frames_has_their_times(videos: list[Video], tmp_path: Path) -> None:
    times = Times(fps=5)
    run = ToyExtraction(tmp_path / "out", videos).add("eyes", times).add("ears", times, net="log_mel", aligned_with="times")
    run.add("all", None, net="log_mel")
    assert [result.bad for result in run.run()] == [None] * 12
    seen, heard = (FeatureStore.open(tmp_path / "out" / name).view() for name in ("eyes", "ears"))
    for n, video in enumerate(videos):
        assert np.array_equal(seen.pts(video.id), heard.pts(video.id)) if n % 2 else heard.lengths()[video.id] == 0
    with pytest.raises(ValueError, match="'aligned_with' is for nets that hear"):
        BackboneFeature(net="resnet101", aligned_with="times")
