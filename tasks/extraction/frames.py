"""Probes, frames and shot boundaries of many videos, each decoded once, in decoder processes that may die."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from storage.catalogue import Catalogue
from storage.errors import BadMedia
from storage.media.decode_pool import DecodePool
from storage.media.frame_sampling import Sampling
from storage.media.frame_stream import DecodeJob, FrameRequest, gather, restart, stream_frames
from storage.media.probe import Probe, SampledFrames
from storage.media.resize import UNCHANGED, FrameTransform
from storage.media.shots import Cuts, ScanProgress, ShotJob, detect_cuts
from tasks.catalogue import nameless, probe_files
from tasks.framework.progress import progress_bar
from tasks.framework.stage import StageContext

CUTS_VERSION = 1  # bump when detection finds other cuts
_BLOCK = 1000  # videos whose frame times are in memory together


def probes_of(context: StageContext, catalogue: Catalogue, ids: Sequence[str]) -> Iterator[tuple[str, Probe | BadMedia]]:
    """Each video with the probe of its file, from the file cache; what the cache has lost is probed again."""
    for start in range(0, len(ids), _BLOCK):
        block = ids[start : start + _BLOCK]
        contents = catalogue.content_keys
        found = probe_files(context, {contents[id]: catalogue.path_of(id) for id in block}, times=True)
        for id in block:
            probed = found[contents[id]]
            if probed.metadata is None or probed.pts is None:
                yield id, BadMedia(probed.bad_kind, probed.bad_reason)
            else:
                yield id, Probe(**probed.metadata, pts=probed.pts)


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
            found: dict[str, SampledFrames] | BadMedia
            try:
                found = gather(events)
            except BadMedia as bad:
                found = bad
            yield decoding.popleft(), found
    yield from unreadable


def find_cuts(context: StageContext, files: Mapping[str, tuple[Path, Probe]]) -> dict[str, Cuts | BadMedia]:
    """content hash -> (path, probe) of files -> content hash -> their cuts, or why they could not be decoded. Cuts are detected
    once per content hash and stored in the file cache."""
    known = context.file_cache.cuts(files, CUTS_VERSION)
    found: dict[str, Cuts | BadMedia] = {content: Cuts(*cuts) for content, cuts in known.items()}
    todo = [content for content in files if content not in found]
    if not todo:
        return found
    lengths = [files[content][1].duration for content in todo]
    with (
        progress_bar("looking for shots", round(sum(lengths)), "seconds of video") as bar,
        DecodePool(context.runtime.decoders, context.runtime.decode_timeout) as pool,
    ):
        seconds_done = 0.0
        streams = pool.stream(detect_cuts, [ShotJob(*files[content]) for content in todo], lambda _: ScanProgress(0.0))
        for content, length, (job, events) in zip(todo, lengths, streams, strict=True):
            for event in events:
                match event:
                    case ScanProgress():
                        bar.update_to(round(seconds_done + event.seconds))
                    case Cuts():
                        context.file_cache.note_cuts(content, CUTS_VERSION, event.moments, event.strengths)
                        found[content] = event
                    case BadMedia():
                        found[content] = BadMedia(event.kind, nameless(event.reason, job.path))
            seconds_done += length
            bar.update_to(round(seconds_done))
    return found
