"""Shot boundaries of files: detected in decoder processes, once per content hash, and stored in the file cache."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from storage.errors import BadMedia
from storage.media.decode_pool import DecodePool
from storage.media.probe import Probe
from storage.media.shots import Cuts, ScanProgress, ShotJob, detect_cuts
from tasks.catalogue import nameless
from tasks.framework.progress import progress_bar
from tasks.framework.stage import StageContext

CUTS_VERSION = 1  # bump when detection finds other cuts


def find_cuts(context: StageContext, files: Mapping[str, tuple[Path, Probe]]) -> dict[str, Cuts | BadMedia]:
    """content hash -> (path, probe) of files -> content hash -> their cuts, or why they could not be decoded."""
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
