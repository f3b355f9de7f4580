"""Whole clips in memory, for tests: chosen frames, the frames of several samplings, and a sound track."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from storage.media.audio import stream_audio
from storage.media.frame_sampling import Indices, Sampling, Seconds
from storage.media.frame_stream import DecodeJob, FrameRequest, gather, stream_frames
from storage.media.probe import SAME_MOMENT, Probe, SampledFrames, open_reader, resize_frame
from storage.media.readers import DecordFailed, FrameReader, Picture, PyavReader
from storage.media.resize import UNCHANGED, FrameTransform
from storage.records import TimeSpan


@dataclass(frozen=True, slots=True)
class Frames:
    """images (N, H, W, 3) uint8 RGB, pts (N,) seconds; `seen` counts the frames that the pass went through; `damaged`
    says that the stream was not whole: fewer than the wanted frames can mean a longer promise than film."""

    images: Picture
    pts: Seconds
    seen: int
    damaged: bool


def decode(path: Path, wanted: Indices, probe: Probe, size: tuple[int, int] | None = None) -> Frames:
    """The frames numbered `wanted` (sorted, each once) in one pass; `size` (width, height) scales them as they come."""
    if not len(wanted) or wanted[0] < 0 or np.any(np.diff(wanted) <= 0):
        raise ValueError("wanted must be frame numbers from 0 on, sorted, each once, at least one")
    reader, to_the_end = open_reader(path, wanted, probe)
    try:
        return _collect(reader, wanted, probe, size, to_the_end)
    except DecordFailed:  # PyAV reads it again from the start and finds out by itself what is damaged
        return _collect(PyavReader(path), wanted, probe, size)


def _collect(
    reader: FrameReader, wanted: Indices, probe: Probe, size: tuple[int, int] | None, to_the_end: bool = False
) -> Frames:
    """Run a reader up to the last wanted frame, keeping only the wanted ones, at their final size."""
    width, height = size or (probe.width, probe.height)
    images = np.empty((len(wanted), height, width, 3), dtype=np.uint8)
    pts: list[float] = []
    seen, drifted = 0, False
    with closing(reader.frames()) as frames:
        for time, render in frames:
            if seen < probe.frames and abs(time - probe.start - probe.pts[seen]) > SAME_MOMENT:
                drifted = True
            if len(pts) < len(wanted) and seen == wanted[len(pts)]:
                images[len(pts)] = resize_frame(render(), (width, height))
                pts.append(time - probe.start)
            seen += 1
            if len(pts) == len(wanted) and not to_the_end:
                break
    damaged = reader.damaged or drifted or len(pts) < len(wanted)
    return Frames(images[: len(pts)], np.array(pts, dtype=np.float64), seen, damaged)


def read_samples(
    path: Path, samplings: Mapping[str, Sampling], segment: TimeSpan | None, probe: Probe, transform: FrameTransform = UNCHANGED
) -> dict[str, SampledFrames]:
    """The frames of several samplings, decoded once, all in memory: for few or small frames."""
    requests = {name: FrameRequest(sampling, transform) for name, sampling in samplings.items()}
    return gather(stream_frames(DecodeJob(path, requests, segment, probe)))


def read_audio(
    path: Path, rate: int = 16000, segment: TimeSpan | None = None, timeout: float = 300.0
) -> NDArray[np.float32] | None:
    """The first sound track as (samples,) float32 in -1 to 1, mono, `rate` samples a second from the start of the video
    (or of the segment, in seconds) on. None if the file has no sound."""
    blocks = stream_audio(path, rate, segment, timeout)
    return None if blocks is None else np.concatenate([np.empty(0, np.float32), *blocks])
