"""A reader that seeks past frames that are not wanted: for a late segment of a long video, or few frames spread over it.

It seeks only where that can be proved right: the container tells where and when its frames are (MP4 with a whole index,
Matroska), the packet after the seek is a random access point by its own bytes (`random_access.py`), and every frame decoded from
there on has the time that the probe found. Where one of these fails, the video is read from its beginning instead."""

from collections.abc import Generator, Iterator
from functools import partial
from itertools import chain
from pathlib import Path

import av
import numpy as np
from numpy.typing import NDArray

from storage.errors import BadMedia
from storage.media.containers import open_media, video_stream
from storage.media.random_access import is_random_access_point
from storage.media.readers import Picture, PyavReader, TimedFrame, seconds

SEEK_FRAMES = 24
"""Frames that must lie between two wanted ones before the reader seeks; fewer are decoded."""
EXACT = 1e-6
"""Seconds by which times may differ that were stored and read back; frames are never so close."""


class SeekingReader:
    """PyAV from one random access point to the next, where the frames between are not wanted. `moments` (N,) are the times at
    which the frames of the video are shown, in the stream's own seconds; every frame that is decoded must be the next
    of them. If one is not, or anything is damaged, a pass from the first frame on gives the rest: the frames are the
    same either way. Skipped frames (`frames_skipped` counts them) are listed and cannot be rendered."""

    def __init__(self, path: Path, moments: NDArray[np.float64], wanted: NDArray[np.int64]) -> None:
        self.path, self.moments, self.wanted = path, moments, wanted
        self.damaged, self.frames_skipped = False, 0

    def frames(self) -> Generator[TimedFrame, None, None]:
        yielded = 0
        try:
            for shown in self._by_seeking():
                yielded += 1
                yield shown
        except (_InexactSeek, BadMedia):
            reader, self.frames_skipped = PyavReader(self.path), 0
            for frame_index, shown in enumerate(reader.frames()):
                self.damaged |= reader.damaged
                if frame_index >= yielded:
                    yield shown
            self.damaged |= reader.damaged

    def _by_seeking(self) -> Generator[TimedFrame, None, None]:
        with open_media(self.path) as container:
            stream = video_stream(container, self.path)
            if "mp4" in container.format.name and stream.frames < len(self.moments):
                raise _InexactSeek  # fragments: the header does not list their frames
            reader, frame_index = PyavReader(self.path), 0
            run = self._checked_frames(reader, container.demux(stream), stream, 0)
            for target in self.wanted.tolist():
                if target - frame_index >= SEEK_FRAMES and self._has_keyframe_between(stream, frame_index, target):
                    packets, start = self._seek_to(container, stream, frame_index, target)
                    run = self._checked_frames(reader, packets, stream, start)
                    self.frames_skipped += start - frame_index
                    for moment in self.moments[frame_index:start].tolist():
                        yield moment, self._skipped
                    frame_index = start
                while frame_index <= target:
                    yield next(run)
                    frame_index += 1

    def _has_keyframe_between(self, stream: av.VideoStream, frame_index: int, target: int) -> bool:
        """Whether the index knows a keyframe on the way. Before the first frame there is nothing to lose by trying."""
        if frame_index == 0:
            return True
        index = stream.index_entries
        entry = index.search_timestamp(self._stamp(stream, target))
        return entry >= 0 and index[entry].timestamp > self._stamp(stream, frame_index)

    def _stamp(self, stream: av.VideoStream, frame_index: int) -> int:
        return round(float(self.moments[frame_index]) / seconds(1, stream.time_base))

    def _seek_to(
        self, container: av.container.InputContainer, stream: av.VideoStream, frame_index: int, target: int
    ) -> tuple[Iterator[av.Packet], int]:
        """Seek -> the packets from there on and the frame index of the first, which is checked."""
        try:
            container.seek(self._stamp(stream, target), stream=stream)
            packets = container.demux(stream)
            packet = next(packets)
        except (av.error.FFmpegError, StopIteration) as error:
            raise _InexactSeek from error
        if packet.pts is None or not is_random_access_point(packet):
            raise _InexactSeek
        moment = seconds(packet.pts, stream.time_base)
        start = int(np.searchsorted(self.moments, moment - EXACT))
        if not frame_index <= start <= target or abs(self.moments[start] - moment) > EXACT:
            raise _InexactSeek
        return chain([packet], packets), start

    def _checked_frames(
        self, reader: PyavReader, packets: Iterator[av.Packet], stream: av.VideoStream, start: int
    ) -> Generator[TimedFrame, None, None]:
        """The frames from `start` on, each checked against its time."""
        frame_index, base = start, stream.time_base
        for frame in reader.decoded(packets, stream):
            if frame.pts is None or frame.is_corrupt or reader.damaged or frame_index >= len(self.moments):
                raise _InexactSeek
            moment = seconds(frame.pts, base)
            if abs(moment - self.moments[frame_index]) > EXACT:
                raise _InexactSeek
            yield moment, partial(reader.render, frame)
            frame_index += 1
        raise _InexactSeek

    def _skipped(self) -> Picture:
        raise ValueError("a frame that was not asked for has no pixels")


class _InexactSeek(Exception):
    """A seek did not lead to where it should."""
