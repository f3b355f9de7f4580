"""A disk that fails for a moment while videos are read: told as that, never taken for damage of the video."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from storage.errors import BadMedia, TransientError
from storage.files.disk_check import read_through
from storage.files.file_cache import FileCache
from storage.media import frame_stream
from storage.media import probe as probe_module
from storage.media.frame_sampling import Uniform
from storage.media.frame_stream import DecodeJob, EndOfStream, Failed, FrameRequest, Restart, gather, stream_frames
from storage.media.probe import probe
from tests.storage.clips import make_clip


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    return make_clip(tmp_path / "clip.mp4", 12)


class Failing(io.RawIOBase):
    """An open file of which no byte can be read."""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    read = readinto


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every file fails as on a broken disk."""
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", lambda self, *_, **__: Failing())
        yield


def test_a_probe_on_a_failing_disk_says_so(clip: Path, failing: None) -> None:
    with pytest.raises(TransientError, match=r"cannot read .*clip.mp4: Input/output error; check the disk"):
        probe(clip)


def test_a_fingerprint_on_a_failing_disk_says_so(tmp_path: Path, clip: Path, failing: None) -> None:
    with pytest.raises(TransientError, match=r"clip.mp4: Input/output error.*take it out of the folder"):
        FileCache(tmp_path / "ledger.sqlite").fingerprint(tmp_path, ["clip.mp4"])


def test_a_file_that_is_not_there_has_no_fingerprint(tmp_path: Path) -> None:
    assert FileCache(tmp_path / "ledger.sqlite").fingerprint(tmp_path, ["gone.mp4"]) == {"gone.mp4": None}


def test_a_probe_that_failed_for_a_moment_is_made_again(clip: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calm, real, calls = probe(clip), probe_module._probe, []

    def at_first_cut_short(path: Path) -> probe_module.Probe:
        calls.append(path)
        if len(calls) == 1:
            raise BadMedia("truncated", "its end was not read")
        return real(path)

    monkeypatch.setattr(probe_module, "_probe", at_first_cut_short)
    assert probe(clip).frames == calm.frames and len(calls) == 2


@pytest.mark.parametrize("event", [Failed(("few",), BadMedia("undecodable", "not read")), EndOfStream(damaged=True)])
def test_a_look_that_failed_for_a_moment_is_taken_again(
    clip: Path, monkeypatch: pytest.MonkeyPatch, event: frame_stream.Event
) -> None:
    job = DecodeJob(clip, {"few": FrameRequest(Uniform(frames=3))}, None, probe(clip))
    calm, real, calls = gather(stream_frames(job))["few"], frame_stream._decode, []

    def at_first_cut_short(job: DecodeJob) -> Iterator[frame_stream.Event]:
        calls.append(job)
        yield from [event] if len(calls) == 1 else real(job)

    monkeypatch.setattr(frame_stream, "_decode", at_first_cut_short)
    events = list(stream_frames(job))
    assert Restart(("few",)) in events and len(calls) == 2
    again = gather(events)["few"]
    assert (again.images == calm.images).all() and not again.damaged


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.mp4")
    assert list(read_through(tmp_path / "pipe.mp4")) == []
    with pytest.raises(BadMedia, match="not a regular file"):
        probe(tmp_path / "pipe.mp4")
