"""Frames of many videos: each is decoded once, in decoder processes that may die."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence

from storage.catalogue import Catalogue
from storage.errors import BadMedia
from storage.files.file_cache import CachedProbe
from storage.media.decode_pool import DecodePool
from storage.media.frame_sampling import Sampling
from storage.media.frame_stream import DecodeJob, Event, FrameRequest, gather, restart, stream_frames
from storage.media.probe import Probe, SampledFrames
from storage.media.resize import UNCHANGED, FrameTransform
from tasks.catalogue import probe_files
from tasks.framework.stage import StageContext

_BLOCK = 1000  # videos whose frame times are in memory together


def probes_of(
    context: StageContext, catalogue: Catalogue, ids: Sequence[str]
) -> Iterator[tuple[str, Probe | BadMedia]]:
    """Each video with the probe of its file, from the file cache; what the cache has lost is probed again."""
    for start in range(0, len(ids), _BLOCK):
        block = ids[start : start + _BLOCK]
        contents = catalogue.content_keys
        found = probe_files(context, {contents[id]: catalogue.path_of(id) for id in block}, times=True)
        for id in block:
            yield id, _as_probe(found[contents[id]])


def _as_probe(probed: CachedProbe) -> Probe | BadMedia:
    if probed.metadata is None or probed.pts is None:
        return BadMedia(probed.bad_kind, probed.bad_reason)
    return Probe(**probed.metadata, pts=probed.pts)


def read_frames(
    context: StageContext,
    catalogue: Catalogue,
    wanted: Mapping[str, Mapping[str, Sampling]],
    transform: FrameTransform = UNCHANGED,
) -> Iterator[tuple[str, dict[str, SampledFrames] | BadMedia]]:
    """wanted: video id -> name -> sampling. Yields each video with its frames by name, or with the reason why not: in order,
    but those that could not be probed come last. All frames of a video are in memory together."""
    decoding: deque[str] = deque()
    unreadable: list[tuple[str, BadMedia]] = []

    def jobs() -> Iterator[DecodeJob]:
        for id, probe in probes_of(context, catalogue, list(wanted)):
            if isinstance(probe, BadMedia):
                unreadable.append((id, probe))
            else:
                decoding.append(id)
                requests = {name: FrameRequest(sampling, transform) for name, sampling in wanted[id].items()}
                yield DecodeJob(catalogue.path_of(id), requests, catalogue.records[id].segment, probe)

    with DecodePool(context.runtime.decoders, context.runtime.decode_timeout) as pool:
        for _, events in pool.stream(stream_frames, jobs(), restart):
            yield decoding.popleft(), _gathered(events)
    yield from unreadable


def _gathered(events: Iterator[Event | BadMedia]) -> dict[str, SampledFrames] | BadMedia:
    try:
        return gather(events)
    except BadMedia as bad:
        return bad
