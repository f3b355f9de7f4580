"""Plans of frames: which numbers each strategy asks for."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from storage.errors import BadMedia
from storage.media.frame_sampling import (
    Clips,
    EveryNth,
    Keyframes,
    Sampling,
    Times,
    Uniform,
    Windows,
    choose_frames,
    frames_at,
)

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
    with pytest.raises(ValidationError, match="'uniform', 'every', 'times', 'clips', 'windows', 'keyframes'"):
        TypeAdapter(Sampling).validate_python({"kind": "unifrom"})


def test_frames_per_second_and_seconds_between_frames_are_the_same_choice() -> None:
    assert choose_frames(Times(fps=2), PTS).ravel().tolist() == [0, 12, 25, 37, 50, 62, 75, 87]
    assert np.array_equal(choose_frames(Times(fps=2), PTS), choose_frames(Times(every=0.5), PTS))
    assert choose_frames(Times(every=1.5), PTS).ravel().tolist() == [0, 37, 75]
    assert choose_frames(Times(fps=50), PTS).ravel().tolist() == [n // 2 for n in range(200)], "more than there are: repeated"


def test_a_variable_frame_rate_changes_the_frames_and_not_their_times() -> None:
    pts = np.concatenate([np.arange(0, 2, 0.1), np.arange(2, 6, 0.5)])  # 10 frames per second, then 2
    chosen = choose_frames(Times(every=0.5), pts).ravel()
    assert pts[chosen].tolist() == pytest.approx(np.arange(0, 6, 0.5).tolist())
    assert choose_frames(Times(every=0.25), np.array([0.0, 0.3, 2.0, 2.1])).ravel().tolist() == [0, 0, 1, 1, 1, 1, 1, 1, 2, 3]


@pytest.mark.parametrize(
    "sampling", [Times(fps=2), Times(every=60), Windows(seconds=4, length=3), Windows(seconds=1, overlap=0.5)]
)
def test_a_short_video_and_a_picture_have_one_position_at_the_least(sampling: Sampling) -> None:
    for frames in (1, 2):
        chosen = choose_frames(sampling, PTS[:frames])
        assert len(chosen) == 1 and chosen.min() == 0 and chosen.max() < frames


def test_windows_follow_each_other_and_share_their_overlap() -> None:
    plan = choose_frames(Windows(seconds=1, length=5), PTS)
    assert plan.tolist() == [[2, 7, 12, 17, 22], [27, 32, 37, 42, 47], [52, 57, 62, 67, 72], [77, 82, 87, 92, 97]]
    overlapping = choose_frames(Windows(seconds=1, overlap=0.5, length=5), PTS)
    assert np.array_equal(overlapping[::2], plan) and overlapping[1].tolist() == [15, 20, 25, 30, 35]
    half = choose_frames(Windows(seconds=3, length=3), PTS)
    assert half.tolist() == [[12, 37, 62]], "the next would show 1 s of video and 2 s of its last frame"
    assert choose_frames(Windows(seconds=3, overlap=1, length=3), PTS).tolist() == [[12, 37, 62], [62, 87, 99]]


def test_a_segment_starts_the_clock_and_ends_the_windows() -> None:
    assert choose_frames(Times(every=0.4), PTS, (1.0, 2.0)).ravel().tolist() == [25, 35, 45]
    assert choose_frames(Windows(seconds=1, length=2), PTS, (1.0, 3.0)).tolist() == [[31, 43], [56, 68]]
    assert choose_frames(Windows(seconds=1, length=2), PTS, (3.8, 9.0)).tolist() == [[96, 98]], "0.2 s are left"


def test_a_long_video_is_thinned_to_the_limit_and_seen_to_its_end() -> None:
    pts = np.arange(0, 7200, 0.5)  # two hours
    assert len(choose_frames(Times(fps=2), pts)) == 1000 == len(choose_frames(Windows(seconds=2), pts))
    few = choose_frames(Times(every=1, limit=4), pts).ravel()
    assert pts[few].tolist() == [900, 2700, 4500, 6300]
    assert len(choose_frames(Times(fps=2, limit=None), pts)) == 14400


def test_sampling_by_time_says_what_it_cannot_do() -> None:
    for values in ({}, {"fps": 2, "every": 0.5}):
        with pytest.raises(ValidationError, match="exactly one of 'fps' and 'every'"):
            Times(**values)
    with pytest.raises(ValidationError, match="'overlap' must be less than 'seconds'"):
        Windows(seconds=1, overlap=1)
