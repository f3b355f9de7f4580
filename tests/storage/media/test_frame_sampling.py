"""Plans of frames: which numbers each strategy asks for."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from storage.errors import BadMedia
from storage.media.frame_sampling import Clips, EveryNth, Keyframes, Sampling, Uniform, choose_frames, frames_at

PTS = np.arange(100) / 25  # four seconds


def test_uniform_takes_the_middles_of_equal_parts() -> None:
    assert choose_frames(Uniform(frames=4), PTS).tolist() == [[12], [37], [62], [87]]


def test_uniform_takes_every_frame_once_when_there_are_too_few() -> None:
    assert choose_frames(Uniform(frames=28), PTS[:3]).tolist() == [[0], [1], [2]]


def test_every_nth_keeps_the_stride_and_thins_evenly_at_its_limit() -> None:
    assert choose_frames(EveryNth(stride=30), PTS).ravel().tolist() == [0, 30, 60, 90]
    thinned = choose_frames(EveryNth(stride=5, limit=4), PTS).ravel()
    assert len(thinned) == 4 and thinned[-1] > 80 and np.all(thinned % 5 == 0)


def test_clips_surround_their_positions_and_stop_at_the_borders() -> None:
    plan = choose_frames(Clips(positions=2, length=4, step=2), PTS)
    assert plan.tolist() == [[21, 23, 25, 27], [71, 73, 75, 77]]
    assert choose_frames(Clips(stride=50, length=4), PTS).tolist() == [[0, 0, 0, 1], [48, 49, 50, 51]]
    assert choose_frames(Clips(positions=2, length=3, step=0), PTS).tolist() == [[25] * 3, [75] * 3], "still pictures"


def test_clips_want_exactly_one_of_positions_and_stride() -> None:
    with pytest.raises(ValidationError, match="exactly one"):
        Clips()
    with pytest.raises(ValidationError, match="exactly one"):
        Clips(positions=2, stride=3)


def test_keyframes_have_near_and_far_neighbours() -> None:
    pts = np.arange(1000) / 25
    plan = choose_frames(Keyframes(count=3, far=30), pts)
    assert plan.shape == (3, 5)
    assert plan[:, 2].tolist() == [166, 500, 833]
    assert np.all(plan[:, 2] - plan[:, 1] == 10) and np.all(plan[:, 3] - plan[:, 2] == 10)
    far = plan[:, 4] - plan[:, 2]
    assert np.array_equal(far, plan[:, 2] - plan[:, 0]) and np.all((far >= 30) & (far < 60))
    assert np.array_equal(plan, choose_frames(Keyframes(count=3, far=30), pts))
    assert not np.array_equal(plan, choose_frames(Keyframes(count=3, far=30, seed=1), pts))


def test_the_far_distances_never_change_between_versions() -> None:
    plan = choose_frames(Keyframes(count=4, seed=7), np.arange(1000) / 25)
    assert (plan[:, 4] - plan[:, 2]).tolist() == [34, 27, 29, 48]


def test_far_neighbours_must_be_far() -> None:
    with pytest.raises(ValidationError, match="greater than 25"):
        Keyframes(count=1, far=25)


def test_a_segment_limits_the_frames_to_those_on_display() -> None:
    assert choose_frames(EveryNth(stride=1), PTS, (1.0, 1.2)).ravel().tolist() == [25, 26, 27, 28, 29]
    # 1.01 s lies inside the display of frame 25; a frame that begins at the end is not shown any more.
    assert choose_frames(EveryNth(stride=1), PTS, (1.01, 1.08)).ravel().tolist() == [25, 26]
    assert choose_frames(Clips(positions=1, length=9), PTS, (1.0, 1.2)).ravel().tolist() == [25, 25, 25, 26, 27, 28, 29, 29, 29]


def test_a_segment_has_at_least_the_frame_on_display_at_its_start() -> None:
    assert choose_frames(Uniform(), PTS, (2.01, 2.02)).tolist() == [[50]]
    assert choose_frames(Uniform(), PTS, (3.99, 9.0)).tolist() == [[99]]


@pytest.mark.parametrize("segment", [(4.0, 5.0), (60.0, 70.0), (float("nan"), 1.0)])
def test_a_segment_after_the_end_is_refused(segment: tuple[float, float]) -> None:
    with pytest.raises(BadMedia, match=r"starts after the end of the video at 4\.00 s") as caught:
        choose_frames(Uniform(), PTS, segment)
    assert caught.value.kind == "segment_outside"


def test_frames_at_gives_the_frame_on_display() -> None:
    pts = np.array([0.0, 0.5, 0.6, 2.0])
    assert frames_at(pts, np.array([-1.0, 0.0, 0.49, 0.5, 1.99, 2.0, 99.0])).tolist() == [0, 0, 0, 1, 2, 3, 3]


def test_an_unknown_kind_lists_the_known_ones() -> None:
    with pytest.raises(ValidationError, match="'uniform', 'every', 'clips', 'keyframes'"):
        TypeAdapter(Sampling).validate_python({"kind": "unifrom"})
