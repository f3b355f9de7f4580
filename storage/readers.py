"""The readers: PyAV, decord and still pictures behind one small protocol. Each makes one pass from the first frame on.

Measured on clips whose frames carry their number: PyAV read in order is right for every codec and container tried.
decord is right only when every frame is taken with `next()`: by index, and also by `skip_frames`, it is silently wrong
for open-GOP h264 and others; with leading frames that are not shown it pads the end with copies. So it reads plain
files only (`storage.media` decides) and from end to end."""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from pathlib import Path
from typing import Protocol

import av
import numpy as np
from av.sidedata.sidedata import SideData
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from storage.containers import MAX_PIXELS, open_media, video_stream
from storage.errors import BadMedia

Picture = NDArray[np.uint8]
Shown = tuple[float, Callable[[], Picture]]
"""When a frame is displayed, in the stream's own seconds, and how to get its pixels (H, W, 3) RGB, upright."""


class Reader(Protocol):
    """One pass over a video. `damaged` is final once the pass has ended."""

    damaged: bool

    def frames(self) -> Generator[Shown, None, None]:
        """Every frame in the order of display; pixels are only made for the frames that are rendered."""
        ...


class PyavReader:
    """FFmpeg's libraries through PyAV. A packet that cannot be decoded is left out and noted as damage. `rotation` is
    the turn of the last frame read, None if it has no display matrix."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.damaged = False
        self.rotation: int | None = None

    def frames(self) -> Generator[Shown, None, None]:
        with open_media(self.path) as container:
            stream = video_stream(container, self.path)
            length = float(1 / stream.average_rate) if stream.average_rate else 0.0
            last = float("-inf")
            for frame in self._decoded(container, stream):
                self.damaged |= frame.is_corrupt
                self.rotation = frame.rotation if frame.side_data.get("DISPLAYMATRIX") else None
                if frame.pts is not None:
                    last = max(last, seconds(frame.pts, stream.time_base))  # damaged streams can step back in time
                else:
                    last = last + length if last > float("-inf") else 0.0
                yield last, partial(self._render, frame)

    def _render(self, frame: av.VideoFrame) -> Picture:
        try:
            return upright(frame)
        except (av.error.FFmpegError, ValueError) as error:
            raise BadMedia(
                "undecodable", f"{self.path} has frames that cannot become RGB: {error}; convert it"
            ) from error

    def _decoded(
        self, container: av.container.InputContainer, stream: av.VideoStream
    ) -> Generator[av.VideoFrame, None, None]:
        packets = container.demux(stream)
        ended = False
        while not ended:
            frames: list[av.VideoFrame] = []
            try:
                packet = next(packets, None)
                ended = packet is None  # without a packet the decoder gives back what it still holds
                frames = stream.codec_context.decode(packet)
            except av.error.EOFError:
                ended = True
            except av.error.InvalidDataError:
                self.damaged = True
            except av.error.FFmpegError as error:
                raise BadMedia("undecodable", f"{self.path} stops decoding: {error}; convert it") from error
            yield from frames


class DecordReader:
    """decord, frame by frame. It decodes ahead in a thread of its own, so damage shows at a moment that differs from
    run to run; only a pass that reached the end proves the file whole. `DecordFailed` says to read it another way."""

    def __init__(self, path: Path, times: NDArray[np.float64]) -> None:
        self.path = path
        self.times = times
        self.damaged = False

    def frames(self) -> Generator[Shown, None, None]:
        import decord  # loaded on first use: it brings its own FFmpeg, and must never be loaded before a fork

        decord.logging.set_level(decord.logging.QUIET)
        try:
            # The smallest fault_tol: a copy put in the place of a frame that did not decode is an error, not a frame.
            video = decord.VideoReader(str(self.path.absolute()), num_threads=1, fault_tol=1e-6)
            if len(video) != len(self.times):
                raise DecordFailed(f"decord counts {len(video)} frames, the container has {len(self.times)}")
            for time in self.times:
                picture = video.next()
                if picture.shape[2] != 3:  # it takes the padding of narrow rows (48 pixels, say) for a fourth channel
                    raise DecordFailed(f"decord gives {picture.shape[2]} channels at this width")
                yield float(time), picture.asnumpy
        except (decord.DECORDError, decord.DECORDLimitReachedError, RuntimeError, StopIteration) as error:
            raise DecordFailed(str(error)) from error


class DecordFailed(Exception):
    """decord cannot be trusted with this file."""


class PictureReader:
    """A still picture as a video of one frame. A picture that breaks off is refused, not shown in part."""

    def __init__(self, path: Path, format: str) -> None:
        self.path = path
        self.format = format
        self.damaged = False

    def frames(self) -> Generator[Shown, None, None]:
        try:
            with Image.open(self.path, formats=[self.format]) as image:
                if image.width * image.height > MAX_PIXELS:
                    raise BadMedia(
                        "too_large", f"{self.path} has {image.width}x{image.height} pixels; scale it down first"
                    )
                pixels = np.asarray(ImageOps.exif_transpose(image).convert("RGB"))
        except Image.DecompressionBombError as error:
            raise BadMedia("too_large", f"{self.path} is too large: {error}; scale it down first") from error
        except UnidentifiedImageError as error:
            raise BadMedia("not_media", f"{self.path} begins as {self.format} but is none; replace it") from error
        except (OSError, ValueError, SyntaxError) as error:  # Pillow's words for broken data
            raise BadMedia(
                "truncated", f"{self.path} is a broken {self.format} picture: {error}; copy it again"
            ) from error
        yield 0.0, lambda: pixels


def seconds(pts: int, time_base: object) -> float:
    """A time stamp in seconds; one formula for packets and frames, so that equal stamps stay equal."""
    return pts * time_base.numerator / time_base.denominator  # type: ignore[attr-defined]


def upright(frame: av.VideoFrame) -> Picture:
    """A decoded frame as (H, W, 3) RGB, turned and mirrored as its display matrix asks."""
    pixels: Picture = np.asarray(frame.to_ndarray(format="rgb24"), dtype=np.uint8)
    matrix = frame.side_data.get("DISPLAYMATRIX")
    if not isinstance(matrix, SideData):
        return pixels
    # The matrix sends (x, y) to (a x + c y, b x + d y); only quarter turns and mirrors make sense for pixels.
    a, b, _, c, d = np.frombuffer(bytes(matrix), dtype=np.int32)[:5]
    if abs(int(b)) > abs(int(a)):
        pixels, across, down = pixels.transpose(1, 0, 2), c, b
    else:
        across, down = a, d
    return np.ascontiguousarray(pixels[:: -1 if down < 0 else 1, :: -1 if across < 0 else 1])
