"""A reader that jumps over frames that nobody asked for: a late segment of a long film, or few frames spread over it.

Jumping is only for files where it can be proved right: the container tells where and when its frames are (MP4 with a whole
index, Matroska), the landing is a clean start by its own bytes (`clean_starts.py`), and every frame decoded from there on
has the time that the probe found. Wherever one of these fails, the film is read from its beginning instead."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from functools import partial
from itertools import chain
from pathlib import Path

import av
import numpy as np
from numpy.typing import NDArray

from storage.errors import BadMedia
from storage.media.clean_starts import is_clean_start
from storage.media.containers import open_media, video_stream
from storage.media.readers import Picture, PyavReader, TimedFrame, seconds

SEEK_FRAMES = 24
"""Frames that must lie between two wanted ones before a jump is considered: a shorter way is decoded."""
EXACT = 1e-6
"""Seconds by which times may differ that were stored and read back; frames are never so close."""


class SeekingReader:
    """PyAV from one clean start to the next, where the frames between are not wanted. `moments` (N,) are the times at
    which the frames of the video are shown, in the stream's own seconds; every frame that is decoded must be the next
    of them. If one is not, or anything is damaged, a pass from the first frame on gives the rest: the frames are the
    same either way. Frames that were jumped over (`frames_skipped` counts them) are listed and cannot be rendered."""

    def __init__(self, path: Path, moments: NDArray[np.float64], wanted: NDArray[np.int64]) -> None:
        self.path = path
        self.moments = moments
        self.wanted = wanted
        self.damaged = False
        self.frames_skipped = 0

    def frames(self) -> Generator[TimedFrame, None, None]:
        given = 0
        try:
            for shown in self._by_seeking():
                given += 1
                yield shown
        except (_InexactSeek, BadMedia):
            reader, self.frames_skipped = PyavReader(self.path), 0
            for number, shown in enumerate(reader.frames()):
                self.damaged |= reader.damaged
                if number >= given:
                    yield shown
            self.damaged |= reader.damaged

    def _by_seeking(self) -> Generator[TimedFrame, None, None]:
        with open_media(self.path) as container:
            stream = video_stream(container, self.path)
            if "mp4" in container.format.name and stream.frames < len(self.moments):
                raise _InexactSeek  # fragments: the header does not list their frames
            reader, number = PyavReader(self.path), 0
            run = self._run(reader, container.demux(stream), stream, 0)
            for target in self.wanted.tolist():
                if target - number >= SEEK_FRAMES and self._start_between(stream, number, target):
                    packets, start = self._land(container, stream, number, target)
                    run = self._run(reader, packets, stream, start)
                    self.frames_skipped += start - number
                    for moment in self.moments[number:start].tolist():
                        yield moment, self._skipped
                    number = start
                while number <= target:
                    yield next(run)
                    number += 1

    def _start_between(self, stream: av.VideoStream, number: int, target: int) -> bool:
        """Whether the index knows a keyframe on the way. Before the first frame there is nothing to lose by trying."""
        if number == 0:
            return True
        index = stream.index_entries
        place = index.search_timestamp(self._stamp(stream, target))
        return place >= 0 and index[place].timestamp > self._stamp(stream, number)

    def _stamp(self, stream: av.VideoStream, number: int) -> int:
        return round(float(self.moments[number]) / seconds(1, stream.time_base))

    def _land(
        self, container: av.container.InputContainer, stream: av.VideoStream, number: int, target: int
    ) -> tuple[Iterator[av.Packet], int]:
        """Seek, and make sure of the place: the packets from there on and the number of their first picture."""
        try:
            container.seek(self._stamp(stream, target), stream=stream)
            packets = container.demux(stream)
            packet = next(packets)
        except (av.error.FFmpegError, StopIteration) as error:
            raise _InexactSeek from error
        if packet.pts is None or not is_clean_start(packet):
            raise _InexactSeek
        moment = seconds(packet.pts, stream.time_base)
        start = int(np.searchsorted(self.moments, moment - EXACT))
        if not number <= start <= target or abs(self.moments[start] - moment) > EXACT:
            raise _InexactSeek
        return chain([packet], packets), start

    def _run(
        self, reader: PyavReader, packets: Iterator[av.Packet], stream: av.VideoStream, start: int
    ) -> Generator[TimedFrame, None, None]:
        """The frames from `start` on, each checked against its time."""
        number, base = start, stream.time_base
        for frame in reader.decoded(packets, stream):
            if frame.pts is None or frame.is_corrupt or reader.damaged or number >= len(self.moments):
                raise _InexactSeek
            moment = seconds(frame.pts, base)
            if abs(moment - self.moments[number]) > EXACT:
                raise _InexactSeek
            yield moment, partial(reader.render, frame)
            number += 1
        raise _InexactSeek

    def _skipped(self) -> Picture:
        raise ValueError("a frame that was not asked for has no pixels")


class _InexactSeek(Exception):
    """A jump did not lead to where it should."""
