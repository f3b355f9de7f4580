"""Tiny clips whose frames carry their own number, so that a test can read from the pixels which frame it was given."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import av
import numpy as np

COLUMNS, ROWS = 4, 2
"""Eight binary digits, drawn as black and white blocks: numbers 0 to 255."""


def numbered_image(number: int, width: int = 96, height: int = 64) -> np.ndarray:
    """number -> (height, width, 3) uint8; the most significant digit is the top left block."""
    digits = np.array([number >> bit & 1 for bit in range(7, -1, -1)]).reshape(ROWS, COLUMNS)
    rows = np.arange(height) * ROWS // height
    columns = np.arange(width) * COLUMNS // width
    return np.repeat((digits[rows][:, columns] * 200 + 28).astype(np.uint8)[:, :, None], 3, axis=2)


def read_number(image: np.ndarray) -> int:
    """(H, W, 3) uint8 of any size -> the number drawn on it."""
    height, width = image.shape[:2]
    number = 0
    for row in range(ROWS):
        for column in range(COLUMNS):
            y, x = int((row + 0.5) * height / ROWS), int((column + 0.5) * width / COLUMNS)
            number = number * 2 + int(image[y - 2 : y + 3, x - 2 : x + 3].mean() > 128)
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
    fps: int = 25,
    times: Sequence[int] | None = None,
    pixels: str = "yuv420p",
    options: dict[str, str] | None = None,
    muxing: dict[str, str] | None = None,
    rotation: int = 0,
    mirrored: bool = False,
    tone: float | None = None,
) -> Path:
    """Write `count` numbered frames and return the path. `times` are the frames' moments in milliseconds (variable
    frame rate); `rotation` stores the pictures turned and asks the player to turn them back by so many degrees
    counter-clockwise (`mirrored`: and then to mirror them); `tone` adds a sine of that frequency."""
    width, height = size
    with av.open(str(path), "w", container_options=muxing or {}) as container:
        video = container.add_stream(codec, rate=fps, options=options or {})
        assert isinstance(video, av.VideoStream)
        stored = (height, width) if rotation % 180 else (width, height)
        video.width, video.height = stored
        video.pix_fmt = pixels
        if times is not None:
            video.codec_context.time_base = Fraction(1, 1000)
        if rotation or mirrored:
            video.set_display_rotation(rotation, hflip=mirrored)
        audio = container.add_stream("aac", rate=44100, layout="mono") if tone else None
        for number in range(count):
            picture = numbered_image(number, width, height)[:, :: -1 if mirrored else 1]
            picture = np.rot90(picture, -rotation // 90)
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")
            frame.pts = number if times is None else times[number]
            frame.time_base = Fraction(1, fps) if times is None else Fraction(1, 1000)
            container.mux(video.encode(frame))
        container.mux(video.encode(None))
        if audio is not None and tone:
            container.mux([packet for frame in _sine(tone, count / fps) for packet in audio.encode(frame)])
            container.mux(audio.encode(None))
    return path


def make_sound(path: Path, tone: float, seconds: float) -> Path:
    """A file with a sine tone and no picture."""
    with av.open(str(path), "w") as container:
        audio = container.add_stream("aac", rate=44100, layout="mono")
        container.mux([packet for frame in _sine(tone, seconds) for packet in audio.encode(frame)])
        container.mux(audio.encode(None))
    return path


def _sine(tone: float, seconds: float) -> list[av.AudioFrame]:
    moments = np.arange(int(seconds * 44100)) / 44100
    frames = []
    for start in range(0, len(moments), 1024):
        wave = 0.5 * np.sin(2 * np.pi * tone * moments[start : start + 1024])
        frame = av.AudioFrame.from_ndarray(wave.astype(np.float32)[None], format="fltp", layout="mono")
        frame.sample_rate, frame.pts, frame.time_base = 44100, start, Fraction(1, 44100)
        frames.append(frame)
    return frames
