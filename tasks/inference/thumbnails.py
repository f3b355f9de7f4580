"""Small JPEGs of a video for the serving page, decoded in a process that may crash, like everything from strangers."""

from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from PIL import Image

from storage.errors import BadMedia
from storage.media.decode_pool import DecodePool
from storage.media.frame_sampling import Uniform
from storage.media.frame_stream import DecodeJob, FrameRequest, gather, restart, stream_frames
from storage.media.probe import probe
from storage.media.readers import Picture
from storage.media.resize import FrameTransform
from tasks.framework.runtime import Runtime


@dataclass(frozen=True)
class Thumbnail:
    """A JPEG and the second that it shows."""

    time: float
    jpeg: bytes


def thumbnails(path: Path, count: int, runtime: Runtime, short: int = 120) -> list[Thumbnail]:
    """`count` evenly spread frames, `short` pixels on the short side; BadMedia if there are none."""
    request = FrameRequest(Uniform(frames=count), FrameTransform(short=short, longest=4 * short))
    with DecodePool(min(1, runtime.decoders), runtime.decode_timeout) as pool:
        (known,) = (answer for _, answer in pool.run(probe, [path]))
        if isinstance(known, BadMedia):
            raise known
        streams = pool.stream(stream_frames, [DecodeJob(path, {"thumbnails": request}, None, known)], restart)
        ((_, events),) = ((job, list(pieces)) for job, pieces in streams)
    found = gather(events)["thumbnails"]
    return [Thumbnail(float(time), _jpeg(image)) for image, time in zip(found.images[:, 0], found.pts, strict=True)]


def _jpeg(image: Picture) -> bytes:
    file = BytesIO()
    Image.fromarray(image).save(file, "JPEG", quality=82)
    return file.getvalue()
