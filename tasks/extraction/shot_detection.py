"""Where files cut from shot to shot: looked through in decoder processes, once for every content, and noted in the file cache."""

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

CUTS_VERSION = 1  # bump when other cuts are found


def find_cuts(context: StageContext, files: Mapping[str, tuple[Path, Probe]]) -> dict[str, Cuts | BadMedia]:
    """content hash -> (path, probe) of files -> content hash -> their cuts, or why they could not be looked through."""
    known = context.file_cache.cuts(files, CUTS_VERSION)
    found: dict[str, Cuts | BadMedia] = {content: Cuts(*cuts) for content, cuts in known.items()}
    todo = [content for content in files if content not in found]
    if not todo:
        return found
    lengths = [files[content][1].duration for content in todo]
    with (
        progress_bar("looking for shots", round(sum(lengths)), "seconds of video") as shown,
        DecodePool(context.runtime.decoders, context.runtime.decode_timeout) as pool,
    ):
        before = 0.0
        streams = pool.stream(detect_cuts, [ShotJob(*files[content]) for content in todo], lambda _: ScanProgress(0.0))
        for content, length, (job, pieces) in zip(todo, lengths, streams, strict=True):
            for piece in pieces:
                match piece:
                    case ScanProgress():
                        shown.update_to(round(before + piece.seconds))
                    case Cuts():
                        context.file_cache.note_cuts(content, CUTS_VERSION, piece.moments, piece.strengths)
                        found[content] = piece
                    case BadMedia():
                        found[content] = BadMedia(piece.kind, nameless(piece.reason, job.path))
            before += length
            shown.update_to(round(before))
    return found
