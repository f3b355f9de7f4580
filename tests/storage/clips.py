"""Tiny clips whose frames carry their own number, so that a test can read from the pixels which frame it was given."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import av
import numpy as np

DIGITS = 8
"""Binary digits, drawn as black and white blocks: numbers 0 to 255."""


def _layout(width: int, height: int) -> tuple[int, int]:
    """(rows, columns) of the blocks; in one line on narrow pictures, so that coding does not blur them."""
    if width * 4 <= height:
        return DIGITS, 1
    return (1, DIGITS) if height * 8 <= width else (2, DIGITS // 2)


def numbered_image(number: int, width: int = 96, height: int = 64) -> np.ndarray:
    """number -> (height, width, 3) uint8; the most significant digit is the top left block."""
    shape = _layout(width, height)
    digits = np.array([number >> bit & 1 for bit in range(DIGITS - 1, -1, -1)]).reshape(shape)
    rows = np.arange(height) * shape[0] // height
    columns = np.arange(width) * shape[1] // width
    return np.repeat((digits[rows][:, columns] * 200 + 28).astype(np.uint8)[:, :, None], 3, axis=2)


def read_number(image: np.ndarray) -> int:
    """(H, W, 3) uint8 of any size -> the number drawn on it."""
    height, width = image.shape[:2]
    rows, columns = _layout(width, height)
    number = 0
    for row in range(rows):
        for column in range(columns):
            y, x = int((row + 0.5) * height / rows), int((column + 0.5) * width / columns)
            number = number * 2 + int(image[max(0, y - 2) : y + 3, max(0, x - 2) : x + 3].mean() > 128)
    return number


def read_numbers(images: np.ndarray) -> list[int]:
    """(..., H, W, 3) -> the numbers in reading order."""
    return [read_number(image) for image in images.reshape(-1, *images.shape[-3:])]


def make_clip(
    path: Path,
    count: int = 40,
    *,
    codec: str = "libx264",
    size: tuple[int, int] = (96, 64),
    fps: int | Fraction = 25,
    times: Sequence[int] | None = None,
    delay: int = 0,
    pixels: str = "yuv420p",
    options: dict[str, str] | None = None,
    muxing: dict[str, str] | None = None,
    metadata: dict[str, str] | None = None,
    rotation: int = 0,
    mirrored: bool = False,
    aspect: Fraction | None = None,
    tone: float | None = None,
    sound: float | None = None,
) -> Path:
    """Write `count` numbered frames and return the path. `times` are the frames' moments in milliseconds (variable
    frame rate); `delay` lets the first frame come so many frames late; `rotation` stores the pictures turned and asks
    the player to turn them back by so many degrees counter-clockwise (`mirrored`: and then to mirror them); `aspect` is
    the shape of a pixel; `tone` adds a sine of that frequency, `sound` seconds long (otherwise as long as the video)."""
    width, height = size
    with av.open(str(path), "w", container_options=muxing or {}) as container:
        container.metadata.update(metadata or {})
        video = container.add_stream(codec, rate=fps, options=options or {})
        assert isinstance(video, av.VideoStream)
        stored = (height, width) if rotation % 180 else (width, height)
        video.width, video.height = stored
        video.pix_fmt = pixels
        video.codec_context.thread_count = 1  # the same bytes whatever else the machine is doing
        if aspect is not None:
            video.codec_context.sample_aspect_ratio = aspect
        if times is not None:
            video.codec_context.time_base = Fraction(1, 1000)
        if rotation or mirrored:
            video.set_display_rotation(rotation, hflip=mirrored)
        audio = container.add_stream("aac", rate=44100, layout="mono") if tone else None
        for number in range(count):
            picture = numbered_image(number, width, height)[:, :: -1 if mirrored else 1]
            picture = np.rot90(picture, -rotation // 90)
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")
            frame.pts = delay + number if times is None else times[number]
            frame.time_base = 1 / Fraction(fps) if times is None else Fraction(1, 1000)
            container.mux(video.encode(frame))
        container.mux(video.encode(None))
        if audio is not None and tone:
            container.mux([p for frame in _sine(tone, sound or float(count / fps)) for p in audio.encode(frame)])
            container.mux(audio.encode(None))
    return path


def make_sound(path: Path, tone: float, seconds: float) -> Path:
    """A file with a sine tone and no picture."""
    with av.open(str(path), "w") as container:
        audio = container.add_stream("aac", rate=44100, layout="mono")
        container.mux([packet for frame in _sine(tone, seconds) for packet in audio.encode(frame)])
        container.mux(audio.encode(None))
    return path


def copy_packets(source: Path, target: Path, first: int, muxing: dict[str, str] | None = None) -> Path:
    """Cut without encoding: the video's packets from number `first` on, so that frames may lose what they lean on."""
    with av.open(str(source)) as given, av.open(str(target), "w", container_options=muxing or {}) as made:
        stream = given.streams.video[0]
        copy = made.add_stream_from_template(stream)
        packets = [packet for packet in given.demux(stream) if packet.size][first:]
        origin = min(packet.pts for packet in packets if packet.pts is not None)
        for packet in packets:
            assert packet.pts is not None and packet.dts is not None
            packet.stream = copy
            packet.pts, packet.dts = packet.pts - origin, packet.dts - origin
            made.mux(packet)
    return target


def keyframe_packets(path: Path) -> list[int]:
    """The numbers of the video's packets that the container calls keyframes."""
    with av.open(str(path)) as container:
        packets = [packet for packet in container.demux(container.streams.video[0]) if packet.size]
        return [number for number, packet in enumerate(packets) if packet.is_keyframe]


def _sine(tone: float, seconds: float) -> list[av.AudioFrame]:
    moments = np.arange(int(seconds * 44100)) / 44100
    frames = []
    for start in range(0, len(moments), 1024):
        wave = 0.5 * np.sin(2 * np.pi * tone * moments[start : start + 1024])
        frame = av.AudioFrame.from_ndarray(wave.astype(np.float32)[None], format="fltp", layout="mono")
        frame.sample_rate, frame.pts, frame.time_base = 44100, start, Fraction(1, 44100)
        frames.append(frame)
    return frames
