"""The readers: PyAV, decord and still pictures behind one small protocol. Each makes one pass over the video.

Measured on clips whose frames carry their number: PyAV read in order is right for every codec and container tried.
decord is right only when every frame is taken with `next()`: by index, and also by `skip_frames`, it is silently wrong
for open-GOP h264 and others; with leading frames that are not shown it pads the end with copies. So it reads plain
files only (`storage.media.probe` decides) and from end to end. `seeking_reader.py` has a reader that leaves frames out."""

from collections.abc import Callable, Generator, Iterator
from functools import partial
from heapq import heappop, heappush
from pathlib import Path
from typing import Protocol

import av
import numpy as np
from av.sidedata.sidedata import SideData
from av.video.reformatter import VideoReformatter
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from storage.errors import BadMedia
from storage.media.containers import MAX_PIXELS, open_media, read_header, video_stream

INVENTIVE = {"mpeg4", "msmpeg4v1", "msmpeg4v2", "msmpeg4v3", "wmv1", "wmv2", "wmv3", "vc1", "flv1", "h263", "h263p"}
"""Codecs whose decoders, when the film begins in the middle, draw on a grey picture until the first whole one."""
REORDERED = {"h264", "hevc"}
"""Codecs whose frames AVI stamps in the order of storage: the n-th frame is shown at the n-th of these times."""

Picture = NDArray[np.uint8]
Frame = Picture | Image.Image
"""The pixels (H, W, 3) RGB, upright; a still picture as Pillow holds it: resizing it then needs no copies."""
TimedFrame = tuple[float, Callable[[], Picture]]
"""When a frame is displayed, in the stream's own seconds, and how to get its pixels."""
_START_OF_SCAN, _END_OF_IMAGE = 0xDA, b"\xff\xd9"
_SIDEWAYS = (5, 6, 7, 8)
"""The EXIF orientations that exchange width and height."""


class FrameReader(Protocol):
    """One pass over a video. `damaged` is final once the pass has ended."""

    damaged: bool

    def frames(self) -> Generator[tuple[float, Callable[[], Frame]], None, None]:
        """Every frame in the order of display; pixels are only made for the frames that are rendered."""
        ...


class PyavReader:
    """FFmpeg's libraries through PyAV. A packet that cannot be decoded is left out and noted as damage, unless it comes
    before the first frame: there it refers to what was cut away, and no player shows it. `rotation` is the turn of the
    last frame rendered, None if it has no display matrix. With `size` (width, height) frames are rendered as thumbnails,
    which is quick and not exact: nothing that is stored may come from them."""

    def __init__(self, path: Path, size: tuple[int, int] | None = None) -> None:
        self.path, self.size, self.damaged = path, size, False
        self.rotation: int | None = None
        self._to_rgb = VideoReformatter()  # kept: to set it up costs more than to convert a small frame

    def frames(self) -> Generator[TimedFrame, None, None]:
        with open_media(self.path) as container:
            stream = video_stream(container, self.path)
            length = float(1 / stream.average_rate) if stream.average_rate else 0.0
            base = stream.time_base
            packets, stamps = container.demux(stream), list[int]()
            if container.format.name == "avi" and stream.codec_context.codec.canonical_name in REORDERED:
                packets = _collect_stamps(packets, stamps)
            last = float("-inf")
            for frame in self.decoded(packets, stream):
                self.damaged |= frame.is_corrupt
                stamp = heappop(stamps) if stamps else frame.pts
                if stamp is not None:
                    last = max(last, seconds(stamp, base))  # damaged streams can step back in time
                else:
                    last = last + length if last > float("-inf") else 0.0
                yield last, partial(self.render, frame)

    def render(self, frame: av.VideoFrame) -> Picture:
        """A decoded frame as (H, W, 3) RGB, upright."""
        try:
            width, height = self.size or (None, None)
            reformatted = self._to_rgb.reformat(frame, width=width, height=height, format="rgb24", threads=1)
            rgb: Picture = np.asarray(reformatted.to_ndarray(), np.uint8)
            matrix = frame.side_data.get("DISPLAYMATRIX")
            self.rotation = frame.rotation if matrix else None
            return upright(rgb, matrix) if isinstance(matrix, SideData) else rgb
        except (av.error.FFmpegError, ValueError) as error:
            words = f"has frames that cannot become RGB: {error}"
            raise BadMedia("undecodable", f"{self.path} {words}; convert it") from error

    def decoded(self, packets: Iterator[av.Packet], stream: av.VideoStream) -> Generator[av.VideoFrame, None, None]:
        """What the packets hold, in the order of display."""
        began = stream.codec_context.codec.canonical_name not in INVENTIVE
        ended, shown = False, 0
        while not ended:
            frames: list[av.VideoFrame] = []
            try:
                packet = next(packets, None)
                ended = packet is None  # without a packet the decoder gives back what it still holds
                frames = stream.codec_context.decode(packet)
            except av.error.EOFError:
                ended = True
            except av.error.InvalidDataError:
                self.damaged |= shown > 0
            except av.error.FFmpegError as error:
                words = f"its frames are damaged, lack their settings or have over {MAX_PIXELS:,} pixels"
                reason = f"{self.path} opens, but {words} ({error.strerror}); convert it"
                raise BadMedia("undecodable", reason) from error
            for frame in frames:
                began |= bool(frame.key_frame)
                if began:
                    shown += 1
                    yield frame


def _collect_stamps(packets: Iterator[av.Packet], stamps: list[int]) -> Iterator[av.Packet]:
    """The packets, their time stamps kept in a heap."""
    for packet in packets:
        if packet.size and packet.pts is not None:
            heappush(stamps, packet.pts)
        yield packet


class DecordReader:
    """decord, frame by frame. It decodes ahead in a thread of its own, so damage shows at a moment that differs from
    run to run; only a pass that reached the end proves the file whole. `DecordFailed` says to read it another way."""

    def __init__(self, path: Path, times: NDArray[np.float64]) -> None:
        self.path, self.times, self.damaged = path, times, False

    def frames(self) -> Generator[TimedFrame, None, None]:
        import decord  # loaded on first use: it brings its own FFmpeg, and must never be loaded before a fork

        read_header(self.path)  # decord would follow a playlist that has taken the file's place
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
        self.path, self.format, self.damaged = path, format, False

    def frames(self) -> Generator[tuple[float, Callable[[], Image.Image]], None, None]:
        image, _ = self._decode()
        yield 0.0, lambda: image

    def upright_size(self) -> tuple[int, int]:
        """(width, height) of a picture. A JPEG whose data comes to its end is taken to be whole, as the packets of a video are:
        what is wrong inside shows when it is decoded. Any other is decoded here."""
        return self._decode(whole=self.format != "JPEG" or not _is_whole_jpeg(self.path.read_bytes()))[1]

    def _decode(self, whole: bool = True) -> tuple[Image.Image, tuple[int, int]]:
        """The upright picture and its size (width, height); if not `whole`, without its pixels."""
        try:
            with Image.open(self.path, formats=[self.format]) as image:
                if image.width * image.height > MAX_PIXELS:
                    size = f"{image.width}x{image.height}"
                    raise BadMedia("too_large", f"{self.path} has {size} pixels; scale it down first")
                sideways = image.getexif().get(ExifTags.Base.Orientation) in _SIDEWAYS
                upright = (image.height, image.width) if sideways else image.size
                if not whole:
                    return image, upright
                ImageOps.exif_transpose(image, in_place=True)
                return image if image.mode == "RGB" else image.convert("RGB"), upright
        except Image.DecompressionBombError as error:
            words = f"announces far more than the {MAX_PIXELS:,} pixels that are read"
            raise BadMedia("too_large", f"{self.path} {words}; scale it down first") from error
        except UnidentifiedImageError as error:
            raise BadMedia("not_media", f"{self.path} begins as {self.format} but is none; replace it") from error
        except (OSError, ValueError, SyntaxError) as error:  # Pillow's words for broken data
            words = f"is a broken {self.format} picture: {error}"
            raise BadMedia("truncated", f"{self.path} {words}; copy it again") from error


def _is_whole_jpeg(data: bytes) -> bool:
    """Whether a JPEG's segments lead to its pixels, and those to the mark of its end."""
    at = 2
    while data[at : at + 1] == b"\xff":
        if data[at + 1] == _START_OF_SCAN:
            return data.find(_END_OF_IMAGE, at) > 0  # among pixels 0xff is never followed by this
        at += 2 + int.from_bytes(data[at + 2 : at + 4])
    return False


def seconds(pts: int, time_base: object) -> float:
    """A time stamp in seconds; one formula for packets and frames, so that equal stamps stay equal."""
    return pts * time_base.numerator / time_base.denominator  # type: ignore[attr-defined]


def upright(pixels: Picture, matrix: SideData) -> Picture:
    """(H, W, 3) -> the same turned and mirrored as a display matrix asks."""
    # The matrix sends (x, y) to (a x + c y, b x + d y); only quarter turns and mirrors make sense for pixels.
    a, b, _, c, d = np.frombuffer(bytes(matrix), dtype=np.int32)[:5]
    across, down = a, d
    if abs(int(b)) > abs(int(a)):
        pixels, across, down = pixels.transpose(1, 0, 2), c, b
    return np.ascontiguousarray(pixels[:: -1 if down < 0 else 1, :: -1 if across < 0 else 1])
