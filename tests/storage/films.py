"""Films made of given pictures, for tests that know what is to be seen when."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import av
import numpy as np

FPS = 12


def write_film(path: Path, pictures: Iterable[np.ndarray], fps: int = 25) -> Path:
    """Pictures (H, W, 3) uint8, one a frame."""
    with av.open(str(path), "w") as container:
        video = container.add_stream("libx264", rate=fps, options={"preset": "ultrafast", "g": "50"})
        assert isinstance(video, av.VideoStream)
        video.pix_fmt = "yuv420p"
        video.codec_context.thread_count = 1
        for number, picture in enumerate(pictures):
            if not number:
                video.height, video.width = picture.shape[:2]
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")
            frame.pts = number
            container.mux(video.encode(frame))
        container.mux(video.encode(None))
    return path


def film(lengths: list[int]) -> Iterator[np.ndarray]:
    """Shots of so many seconds: blocks of colour with a bright square that moves through them."""
    draw = np.random.default_rng(5)
    for length in lengths:
        blocks = draw.integers(0, 256, (4, 4, 3), np.uint8).repeat(24, 0).repeat(24, 1)
        for n in range(length * FPS):
            frame = blocks.copy()
            frame[40:52, n % 80 : n % 80 + 12] = 255
            yield frame
