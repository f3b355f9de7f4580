"""`longtake frames`: the plan that extraction decodes, and what is said where there is none."""

from tasks.sample_frames import FramePlan
from tests.flows.conftest import Longtake
from tests.flows.toy_place import FRAMES, TOY, Place


def test_the_frame_plan_of_a_video_is_shown(place: Place, longtake: Longtake) -> None:
    plan = FramePlan(place.folder(FRAMES))
    id = sorted(plan)[0]
    asked = ("frames", TOY, id, "--data", place.data, "-w", place.workspace.root)
    (row,) = longtake(*asked, "--json").json
    assert (row["video"], row["sampling"], row["frames"]) == (id, "clips", plan.frames(id).tolist())
    assert len(row["seconds"]) == len(row["frames"]) and id in longtake(*asked).out
    unknown = longtake("frames", TOY, "nobody", "--data", place.data, "-w", place.workspace.root)
    assert unknown.code == 2 and "there is no video 'nobody'" in unknown.err
