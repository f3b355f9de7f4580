"""The frame plan alone: which frames of which video, and what happens to a segment that is not there."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from storage.datasets import FolderOptions
from storage.files.atomic import write_parquet
from storage.media.frame_sampling import Uniform
from tasks.catalogue import catalogue
from tasks.framework.feature_access import FeatureAccess
from tasks.sample_frames import FramePlan, SamplingOptions, sample_frames
from tests.tasks.toy_run import ToyRun


def test_the_plan_names_frames_and_times_of_every_usable_video(toy: ToyRun) -> None:
    job = toy.frames()
    plan = pq.read_table(job.folder / "plan.parquet")
    assert plan.num_rows == 18
    assert set(plan["width"].to_pylist()) == {3}
    for frames, times in zip(plan["frames"].to_pylist(), plan["pts"].to_pylist(), strict=True):
        assert len(frames) == 4 * 3 and len(times) == 4
        assert times == sorted(times)
        assert [round(time * 12) for time in times] == frames[1::3], "12 frames a second: time and frame agree"


def test_extraction_decodes_the_frames_of_the_plan(toy: ToyRun) -> None:
    """A plan with other frames than the sampling would choose: those are what the rows are of."""
    job = toy.frames()
    done = job.find_completion()
    assert done is not None
    table = pq.read_table(job.folder / "plan.parquet")
    first = pa.array([[0] * 12] * table.num_rows, table.schema.field("frames").type)
    write_parquet(job.folder / "plan.parquet", table.set_column(3, "frames", first))
    plan = FramePlan(job.folder)
    id = next(iter(plan))
    assert plan.frames(id).tolist() == [[0, 0, 0]] * 4 and plan.times(id).shape == (4,)
    job.workspace.finish(done)  # the file has another size
    features = toy.features()
    access = FeatureAccess.open(features.workspace, features.folder, ("scene",))
    assert len(access.rows["scene"]) == 18
    for id, key in access.rows["scene"].items():
        rows = access.views["scene"].read(id, key)
        assert (rows == rows[0]).all() and (access.views["scene"].pts(id, key) == 0).all()


def test_a_segment_past_the_end_is_quarantined_and_the_others_are_planned(alone, world: Path, tmp_path: Path) -> None:
    clip = sorted((world / "videos").glob("*.mp4"))[0]
    root = tmp_path / "cut"
    root.mkdir()
    (root / "film.mp4").write_bytes(clip.read_bytes())
    rows = [{"video": "film", "caption": "a ball", "split": "train", "start": s, "end": s + 1} for s in (0.0, 1.0, 500.0)]
    (root / "captions.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    data = alone(catalogue, FolderOptions(), root)
    options = SamplingOptions(sampling=Uniform(frames=4))
    job = alone(sample_frames, options, root, videos=data.ref.part("videos"))
    bad = pq.read_table(job.folder / "quarantine.parquet").to_pylist()
    assert [row["kind"] for row in bad] == ["segment_outside"]
    assert len(list(FramePlan(job.folder))) == 2
