"""Videos and pictures: what a file holds (`probe`), and the reader to trust with it (`open_reader`).

Frames are counted by demuxing; where packets are not plainly frames (no time stamps, or double ones) by decoding. If a pass finds
other frames than the count promised, the video is planned again on what is really there and marked as damaged."""

from collections import deque
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import av
import numpy as np
from av.container import InputContainer
from av.video.stream import VideoStream
from PIL import Image

from storage.errors import BadMedia
from storage.files.disk_check import read_through
from storage.media.containers import MIN_SIDE, open_media, picture_format, read_header, video_stream
from storage.media.frame_sampling import Indices, Seconds
from storage.media.readers import DecordReader, Frame, FrameReader, Picture, PictureReader, PyavReader, seconds
from storage.media.resize import frame_size, to_image
from storage.media.seeking_reader import EXACT, SEEK_FRAMES, SeekingReader

SAME_MOMENT = 1e-3
"""Seconds by which the time of a decoded frame may differ from its packet's and still be the same frame."""

# Where decord, read in order, gave exactly the right frames; everything else is PyAV's.
DECORD_CONTAINERS = {"mov,mp4,m4a,3gp,3g2,mj2", "matroska,webm"}
DECORD_CODECS = {"h264", "hevc", "mpeg4", "vp8", "vp9"}
SEEK_CODECS = {"h264", "hevc", "mpeg4", "vp8", "vp9", "mjpeg", "prores", "dnxhd"}
"""Codecs whose random access points can be told from their bytes."""
DECORD_BYTES = 256 * 2**20
"""decord decodes ahead without bound: it may only have videos whose frames, all together, fit in this much memory."""
TIMED_CONTAINERS = {*DECORD_CONTAINERS, "asf", "flv"}
"""Containers whose header says how long they are; elsewhere the duration is a guess of the demuxer's."""
DECORD_SHARE = 0.75
"""decord makes pixels of every frame up to the last, so it is used where at least this share of them is wanted."""


@dataclass(frozen=True, slots=True)
class Probe:
    """What a media file holds. width and height are those of the upright picture; `rotation` is the quarter turn,
    counter-clockwise, that makes it upright; `pts` (frames,) are seconds from the first frame on, which the stream
    itself places at `start`; `damaged`: the header promised more than was found; `reader` is the one to trust."""

    frames: int
    width: int
    height: int
    fps: float
    duration: float
    rotation: int
    codec: str
    container: str
    has_audio: bool
    pts: Seconds
    start: float
    damaged: bool
    is_image: bool
    reader: Literal["decord", "pyav", "picture"]


@dataclass(frozen=True, slots=True)
class SampledFrames:
    """The frames of one sampling: images (P, M, H, W, 3) uint8 RGB, pts (P,) seconds of each position's middle frame,
    indices (P, M) frame numbers."""

    images: Picture
    pts: Seconds
    indices: Indices
    damaged: bool


@dataclass(frozen=True, slots=True)
class _Packets:
    """What demuxing found: the moments of the packets to be shown, sorted; how many packets there are in all; `plain`
    if each has a moment of its own."""

    moments: Seconds
    count: int
    plain: bool
    damaged: bool


def probe(path: Path) -> Probe:
    """Read every packet of a file and decode its first frame. BadMedia says why it cannot be used. A file with
    something wrong is read through and probed again, lest a failing disk be taken for a damaged file."""
    try:
        found = _probe(path)
        if not found.damaged:
            return found
    except BadMedia:
        pass  # the second probe says what is wrong
    deque(read_through(path), maxlen=0)
    return _probe(path)


def probe_several(paths: tuple[Path, ...]) -> list[Probe | BadMedia]:
    """What several files hold, or why each cannot be used."""
    found: list[Probe | BadMedia] = []
    for path in paths:
        try:
            found.append(probe(path))
        except BadMedia as bad:
            found.append(bad)
    return found


def _probe(path: Path) -> Probe:
    kind = picture_format(read_header(path))
    if kind is not None:
        width, height = PictureReader(path, kind).upright_size()
        _require_visible(path, width, height)
        held = (kind.lower(), kind.lower(), False, np.zeros(1), 0.0, False)
        return Probe(1, width, height, 1.0, 1.0, 0, *held, is_image=True, reader="picture")
    with open_media(path) as container:
        stream = video_stream(container, path)
        codec, name = stream.codec_context.codec.canonical_name, container.format.name
        rate = float(stream.average_rate or stream.guessed_rate or 25)
        has_audio = bool(container.streams.audio)
        simple = stream.codec_context.pix_fmt in ("yuv420p", "yuvj420p") and len(container.streams.video) == 1
        packets = _demux(container, stream, path)
        simple &= stream.frames in (0, packets.count)  # decord takes the memory that a header asks for
    reader = PyavReader(path)
    start, (width, height) = _first_frame(reader, path)
    # Frames before the first that decodes refer to pictures that were cut away; no player shows them.
    moments = packets.moments[packets.moments >= start - SAME_MOMENT]
    whole = packets.plain and len(moments) == packets.count and not packets.damaged
    if not packets.plain or not len(moments):
        moments = timeline(path)
    steps = np.diff(moments)
    if len(steps) and moments[-1] > moments[0]:
        rate = len(steps) / float(moments[-1] - moments[0])
    even = not len(steps) or float(steps.max() - steps.min()) <= 2 * SAME_MOMENT
    small = len(moments) * width * height * 3 <= DECORD_BYTES
    known = name in DECORD_CONTAINERS and codec in DECORD_CODECS and simple and reader.rotation is None
    pts = moments - moments[0]
    shown = (len(pts), width, height, rate, float(pts[-1]) + 1 / rate, (reader.rotation or 0) % 360)
    held = (codec, name, has_audio, pts, float(moments[0]), packets.damaged)
    return Probe(*shown, *held, is_image=False, reader="decord" if known and whole and even and small else "pyav")


def open_reader(path: Path, wanted: Indices, probe: Probe) -> tuple[FrameReader, bool]:
    """The reader to trust with the frames numbered `wanted` (sorted), and whether it must be read to the end."""
    moments = probe.start + probe.pts
    if probe.reader == "picture":
        return PictureReader(path, probe.container.upper()), False
    if _can_seek(probe) and np.diff(wanted, prepend=0).max() >= SEEK_FRAMES:
        return SeekingReader(path, moments, wanted), False
    if probe.reader == "decord" and len(wanted) >= DECORD_SHARE * probe.frames:
        return DecordReader(path, moments), True
    return PyavReader(path), False


def _can_seek(probe: Probe) -> bool:
    """Whether the container keeps the place and time of its frames, and no two times are alike."""
    apart = len(probe.pts) > 1 and float(np.diff(probe.pts).min()) > 4 * EXACT
    return probe.container in DECORD_CONTAINERS and probe.codec in SEEK_CODECS and apart and not probe.damaged


def _demux(container: InputContainer, stream: VideoStream, path: Path) -> _Packets:
    """Read every packet without decoding any."""
    # An MP4 index lists the frames within the edit list; the header's count also has those that were cut off.
    promised = len(stream.index_entries) if "mp4" in container.format.name else stream.frames
    # Matroska counts its duration from zero, MP4 from the start: the earlier end is the one that was surely promised.
    end_promised = (min(container.start_time or 0, 0) + (container.duration or 0)) / av.time_base
    stamps: list[int | None] = []
    packets, end, damaged = 0, 0.0, False
    try:
        for packet in container.demux():
            stamp = packet.dts if packet.pts is None else packet.pts
            if packet.size == 0 and stamp is None:
                continue  # the end of a stream, not a packet
            if stamp is not None:
                end = max(end, seconds(stamp + (packet.duration or 0), packet.time_base))
            if packet.stream_index == stream.index:
                packets += 1
                damaged |= packet.is_corrupt
                if packet.size and not packet.is_discard:
                    stamps.append(packet.pts)
    except av.error.FFmpegError:
        damaged = True
    if not stamps:
        if max(promised, stream.frames):
            claim = f"announces {max(promised, stream.frames):,} frames and shows none"
            why = "they were cut off, lie in another file or are hidden by its edit list"
            raise BadMedia("truncated", f"{path} {claim}: {why}; copy or export it again")
        raise BadMedia("no_frames", f"{path} has a video stream without a single frame; remove or replace it")
    damaged |= packets < promised or (container.format.name in TIMED_CONTAINERS and end_promised - end > 1.0)
    known = sorted(stamp for stamp in stamps if stamp is not None)
    moments = np.array([seconds(stamp, stream.time_base) for stamp in known])
    return _Packets(moments, packets, len(set(known)) == len(stamps), damaged)


def _require_visible(path: Path, width: int, height: int) -> None:
    if min(height, width) < MIN_SIDE:
        raise BadMedia("too_small", f"{path} has frames of {width}x{height} pixels: nothing to see; remove it")


def _first_frame(reader: FrameReader, path: Path) -> tuple[float, tuple[int, int]]:
    """When the first frame that decodes is shown, and its (width, height)."""
    with closing(reader.frames()) as frames:
        for time, render in frames:
            size = frame_size(render())
            _require_visible(path, *size)
            return time, size
    raise _no_frame_decodes(path)


def timeline(path: Path) -> Seconds:
    """When each frame is shown, found by decoding them all."""
    with closing(PyavReader(path).frames()) as frames:
        moments = np.array([time for time, _ in frames], dtype=np.float64)
    if not len(moments):
        raise _no_frame_decodes(path)
    return moments


def _no_frame_decodes(path: Path) -> BadMedia:
    return BadMedia("undecodable", f"{path} has packets, but no frame of it can be decoded; convert or replace it")


def resize_frame(picture: Frame, size: tuple[int, int]) -> Frame:
    """A frame of this (width, height); frames of a stream that changes its size end up alike."""
    return picture if frame_size(picture) == size else to_image(picture).resize(size, Image.Resampling.BILINEAR)
