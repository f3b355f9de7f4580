"""The pool of decoder processes: a file that makes a decoder crash or hang costs one video, never the run."""

from pathlib import Path
from typing import Any

from storage.errors import BadMedia, TransientError
from storage.files.disk_check import read_through
from storage.worker_pool import Loss, WorkerPool
from storage.worker_process import WorkerKind

MEMORY = 6 * 2**30
"""Bytes of address space for a decoder: a file of a few kB can claim frames without end."""


class DecodePool(WorkerPool):
    """Decoder processes. A job is the path of a media file, or has one as its `path`; before it is run again, its file is read to
    the end: a disk that does not answer says nothing of the video."""

    kind = WorkerKind("decoder", MEMORY, keeps_memory=True)

    def explain_loss(self, job: Any, lost: Loss, reason: str) -> BadMedia:
        if lost == "timeout":
            return BadMedia(lost, f"{job}: {reason}; the decoder hangs on this file")
        return BadMedia(lost, f"{job}: the decoder process died ({reason}); convert the file")

    def before_retry(self, job: Any) -> None:
        # In a process, because reading may hang as well.
        path = job if isinstance(job, Path) else getattr(job, "path", None)
        if path is not None and self._attempt(read_through, path, lambda *_: True) is not None:
            what = f"cannot read {path}: no answer within {self.timeout:g} s"
            raise TransientError(f"{what}; check the disk or network that it lies on, then run the same command")
