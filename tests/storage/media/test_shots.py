"""Shots: cuts are found where they are, and not in pans, flashes, fades of light or busy scenes."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from storage.media.frame_sampling import Uniform, choose_frames
from storage.media.probe import probe
from storage.media.shots import CutDetector, Cuts, ShotJob, ShotOptions, detect_cuts, shot_spans, window_spans
from tests.storage.films import write_film

FPS = 25


def scene(seed: int, seconds: float, motion: float = 1.0) -> list[np.ndarray]:
    """Thumbnails of one shot: blocks of colour, moving a little, with noise."""
    draw = np.random.default_rng(seed)
    blocks = draw.integers(0, 256, (4, 6, 3)).repeat(8, 0).repeat(8, 1)
    frames = []
    for n in range(round(seconds * FPS)):
        noise = draw.normal(0, 4, blocks.shape)
        frames.append(np.clip(np.roll(blocks, round(motion * n / 5), 1) + noise, 0, 255).astype(np.uint8))
    return frames


def cuts_of(frames: list[np.ndarray]) -> list[float]:
    finder = CutDetector()
    for n, frame in enumerate(frames):
        finder.add(n / FPS, frame)
    return finder.cuts().moments.tolist()


def test_every_cut_is_found_at_its_frame() -> None:
    lengths = [2.0, 1.2, 4.0, 3.0, 1.6]
    frames = [frame for n, length in enumerate(lengths) for frame in scene(n, length)]
    assert cuts_of(frames) == pytest.approx(np.cumsum(lengths)[:-1])


def test_a_pan_a_flash_and_a_slow_change_of_light_are_no_cuts() -> None:
    assert cuts_of(scene(1, 4, motion=5.0)) == []
    flash = scene(2, 4)
    flash[50] = np.full_like(flash[50], 255)
    assert cuts_of(flash) == []
    dimmed = [(frame * (1 - n / 125)).astype(np.uint8) for n, frame in enumerate(scene(3, 4))]
    assert cuts_of(dimmed) == []


def test_segments_are_neither_shorter_nor_longer_than_wanted_and_leave_no_gap() -> None:
    cuts = Cuts(np.array([0.3, 5.0, 5.4, 30.0, 59.8]), np.array([0.9, 0.3, 0.8, 0.9, 0.9]))
    found = shot_spans(cuts, 60.0, ShotOptions(shortest=1.0, longest=12.0))
    assert found[0] == (0.0, 5.4), "of two cuts close to each other the clearer one, none beside the ends"
    assert found[-1][1] == 60.0 and all(a[1] == b[0] for a, b in pairwise(found))
    assert all(1.0 <= end - start <= 12.0 + 1e-9 for start, end in found)
    assert 30.0 in [start for start, _ in found]


def test_windows_are_equal_and_a_short_rest_goes_to_the_last() -> None:
    assert window_spans(10.0, 4.0) == [(0.0, 4.0), (4.0, 10.0)]
    assert window_spans(11.0, 4.0) == [(0.0, 4.0), (4.0, 8.0), (8.0, 11.0)]
    assert window_spans(1.0, 4.0) == [(0.0, 1.0)]


def test_a_segment_begins_with_the_first_frame_of_its_shot(tmp_path: Path) -> None:
    path = write_film(tmp_path / "two.mp4", [*scene(1, 1.2), *scene(2, 2)])
    known = probe(path)
    *_, cuts = detect_cuts(ShotJob(path, known))
    assert isinstance(cuts, Cuts) and len(cuts.moments) == 1
    first, second = shot_spans(cuts, known.duration, ShotOptions())
    assert choose_frames(Uniform(frames=100), known.pts, first).ravel().tolist() == list(range(30))
    assert choose_frames(Uniform(frames=100), known.pts, second).ravel().tolist() == list(range(30, 80))
