"""Small JPEGs of a video for the serving page, decoded in a process that may crash, like everything from strangers."""

from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from PIL import Image

from storage.errors import BadMedia
from storage.media.decode_pool import DecodePool
from storage.media.frame_sampling import Uniform, choose_frames
from storage.media.frame_stream import DecodeJob, FrameRequest, gather, restart, stream_frames
from storage.media.probe import probe
from storage.media.readers import Picture
from storage.media.resize import FrameTransform
from storage.records import TimeSpan
from tasks.framework.runtime import Runtime


@dataclass(frozen=True)
class Thumbnail:
    """A JPEG and the second that it shows."""

    time: float
    jpeg: bytes


def thumbnails(path: Path, parts: Sequence[tuple[TimeSpan, int]], runtime: Runtime, short: int = 120) -> list[list[Thumbnail]]:
    """Of each part so many evenly spread frames, `short` pixels on the short side, in one pass; BadMedia if there are none."""
    transform = FrameTransform(short=short, longest=4 * short)
    requests = {str(n): FrameRequest(Uniform(frames=count), transform) for n, (_, count) in enumerate(parts)}
    with DecodePool(min(1, runtime.decoders), runtime.decode_timeout) as pool:
        (known,) = (answer for _, answer in pool.run(probe, [path]))
        if isinstance(known, BadMedia):
            raise known
        chosen = {str(n): choose_frames(Uniform(frames=count), known.pts, part) for n, (part, count) in enumerate(parts)}
        streams = pool.stream(stream_frames, [DecodeJob(path, requests, None, known, chosen)], restart)
        ((_, events),) = ((job, list(pieces)) for job, pieces in streams)
    found = gather(events)
    return [
        [Thumbnail(float(time), _jpeg(image)) for image, time in zip(found[name].images[:, 0], found[name].pts, strict=True)]
        for name in requests
    ]


def _jpeg(image: Picture) -> bytes:
    file = BytesIO()
    Image.fromarray(image).save(file, "JPEG", quality=82)
    return file.getvalue()
