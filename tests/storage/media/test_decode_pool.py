"""The pool of decoder processes: order, crashes, hangs, errors, and no process left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from storage import worker_pool, worker_process
from storage.errors import BadMedia, TransientError
from storage.media import decode_pool
from storage.media.decode_pool import DecodePool
from storage.media.frame_sampling import Uniform
from storage.media.frame_stream import DecodeJob, FrameRequest, gather, stream_frames
from storage.media.probe import probe
from storage.media.resize import FrameTransform
from tests import ROOT
from tests.storage.clips import make_clip, read_numbers
from tests.storage.media.decode_jobs import (
    act,
    count_to,
    dies_at_first,
    forever,
    hangs_when_read,
    large,
    minus_one,
    odd_error,
    process_id,
    slowly,
    stream_that_dies_at_first,
)


@pytest.fixture(scope="module")
def pool() -> Iterator[DecodePool]:
    with DecodePool(2, timeout=30) as opened:
        yield opened


def test_answers_come_in_the_order_of_the_jobs(pool: DecodePool) -> None:
    jobs = ["slow 0", *(f"quick {n}" for n in range(8))]
    assert list(pool.run(act, jobs)) == [(job, f"{job} done") for job in jobs]


def test_a_crash_and_a_bad_file_cost_one_job_each(pool: DecodePool) -> None:
    answers = dict(pool.run(act, ["a", "crash", "b", "bad", "c"]))
    crash, bad = answers["crash"], answers["bad"]
    assert isinstance(crash, BadMedia) and crash.kind == "crashed" and "SIGSEGV" in crash.reason
    assert isinstance(bad, BadMedia) and (bad.kind, bad.reason) == ("empty", "nothing in it")
    assert [answers[job] for job in "abc"] == ["a done", "b done", "c done"]


def test_a_decoder_that_was_killed_once_costs_nothing(pool: DecodePool, tmp_path: Path) -> None:
    jobs = [tmp_path / "a", tmp_path / "b"]
    assert list(pool.run(dies_at_first, jobs)) == [(job, "done") for job in jobs]
    jobs = [tmp_path / "c"]
    streams = pool.stream(stream_that_dies_at_first, jobs, minus_one)
    assert [list(chunks) for _, chunks in streams] == [[0, 1, -1, 0, 1, 2]], "and what came before is void"


@pytest.mark.parametrize("kills", [2, 99])
def test_a_decoder_that_is_killed_as_it_starts_is_started_again(
    kills: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = tmp_path / "starts"
    count.touch()
    dies = f"""
import os
with open({str(count)!r}, "r+") as file:
    number = len(file.read())
    file.write("x")
if number < {kills}:
    os.kill(os.getpid(), 9)
"""
    monkeypatch.setattr(worker_process, "_PROGRAM", dies + worker_process._PROGRAM)
    with DecodePool(1, timeout=30) as pool:
        if kills == 2:
            assert list(pool.run(act, ["a"])) == [("a", "a done")]
        else:
            with pytest.raises(TransientError, match="ended by SIGKILL as it started"):
                list(pool.run(act, ["a"]))
    assert len(count.read_text()) == 3


def test_a_disk_that_does_not_answer_is_no_fault_of_the_video(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_pool, "read_through", hangs_when_read)
    with DecodePool(1, timeout=1.0) as pool, pytest.raises(TransientError, match=r"clip: no answer within 1 s; check the d"):
        list(pool.run(forever, [tmp_path / "clip"]))


def test_a_hang_ends_at_the_timeout_and_the_rest_goes_on() -> None:
    with DecodePool(1, timeout=1.0) as pool:
        started = time.monotonic()
        answers = dict(pool.run(act, ["a", "hang", "b"]))
        assert time.monotonic() - started < 55
    hang = answers["hang"]
    assert isinstance(hang, BadMedia) and hang.kind == "timeout" and "within 1 s" in hang.reason
    assert answers["b"] == "b done"


@pytest.mark.parametrize("workers", [0, 2])
def test_a_mistake_of_ours_is_raised_with_the_job_named(pool: DecodePool, workers: int) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        list((pool if workers else DecodePool(0, 1)).run(act, ["a", "bug"]))
    assert any("worked on bug" in note for note in caught.value.__notes__)


def test_an_error_that_cannot_travel_is_told_in_words(pool: DecodePool) -> None:
    with pytest.raises(RuntimeError, match="cannot travel: x"):
        list(pool.run(odd_error, ["x"]))


def test_pieces_of_a_stream_come_in_order_and_a_failure_is_the_last_of_them(pool: DecodePool) -> None:
    jobs = ["3 fine", "2 crash", "0 fine", "1 bad", "4 fine"]
    answers = {job: list(chunks) for job, chunks in pool.stream(count_to, jobs)}
    assert answers["3 fine"] == [0, 1, 2] and answers["0 fine"] == [] and answers["4 fine"] == [0, 1, 2, 3]
    *before, crash = answers["2 crash"]
    assert before == [0, 1] and isinstance(crash, BadMedia) and crash.kind == "crashed"
    assert answers["1 bad"][0] == 0 and isinstance(answers["1 bad"][1], BadMedia)


def test_a_stream_waits_until_its_pieces_are_taken(pool: DecodePool, tmp_path: Path) -> None:
    note = tmp_path / "count"
    stream = pool.stream(large, [note])
    _, chunks = next(stream)
    assert len(next(chunks)) == 2**20  # type: ignore[arg-type]
    time.sleep(1.0)
    at_once = 2 * (worker_pool.MAX_QUEUED_MESSAGES + 3)  # of 1 MB each: two in a message
    assert int(note.read_text()) <= at_once, "those that wait and are on their way"
    assert sum(1 for _ in chunks) == 49
    stream.close()


def test_the_time_limit_is_for_each_piece_not_for_the_whole_stream() -> None:
    with DecodePool(1, timeout=2.0) as pool:
        ((_, chunks),) = [(job, list(found)) for job, found in pool.stream(slowly, ["x"])]
    assert chunks == [0, 1, 2, 3]


def test_leaving_in_the_middle_of_a_stream_leaves_nothing_behind() -> None:
    with pytest.raises(KeyError), DecodePool(2, timeout=30) as pool:
        for _, chunks in pool.stream(count_to, ["100 fine"] * 8):
            next(chunks)
            raise KeyError
    assert _within(10, lambda: not any(worker.is_alive() for worker in pool._started))


def test_only_a_few_jobs_are_begun_ahead(pool: DecodePool) -> None:
    begun = []

    def jobs() -> Iterator[str]:
        for n in range(100):
            begun.append(n)
            yield f"job {n}"

    results = pool.run(act, jobs())
    next(results)
    assert len(begun) <= pool.ahead
    next(results)
    assert len(begun) <= pool.ahead + 1


def test_no_worker_outlives_the_pool() -> None:
    with DecodePool(1, timeout=30) as pool:
        [(_, pid)] = pool.run(process_id, [1])
        assert pid != os.getpid()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)  # type: ignore[arg-type]


def test_workers_end_when_their_parent_is_killed_in_the_middle_of_a_job(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    program = (
        "import sys; from pathlib import Path; from storage.media.decode_pool import DecodePool\n"
        "from tests.storage.media.decode_jobs import forever\n"
        "with DecodePool(1, 600) as pool: list(pool.run(forever, [Path(sys.argv[1])]))"
    )
    parent = subprocess.Popen([sys.executable, "-c", program, str(note)], cwd=ROOT)
    assert _within(60, lambda: note.exists() and note.read_text() != "")
    parent.kill()
    parent.wait()
    assert _within(30, lambda: not Path(f"/proc/{note.read_text()}").exists())


def test_workers_leave_an_interrupt_to_their_parent(pool: DecodePool) -> None:
    [(_, pid)] = pool.run(process_id, [1])
    os.kill(pid, signal.SIGINT)  # type: ignore[arg-type]
    pids = {answer for _, answer in pool.run(process_id, range(6))}
    assert pid in pids


@pytest.mark.parametrize("workers", [0, 2])
def test_videos_are_probed_and_decoded(pool: DecodePool, tmp_path: Path, workers: int) -> None:
    paths = [make_clip(tmp_path / f"{n}.mp4", 10 + n) for n in range(3)]
    (tmp_path / "bad.mp4").write_text("text")
    paths.insert(1, tmp_path / "bad.mp4")
    chosen = pool if workers else DecodePool(0, 1)
    probes = dict(chosen.run(probe, paths))
    bad = probes.pop(tmp_path / "bad.mp4")
    assert isinstance(bad, BadMedia) and bad.kind == "not_media"
    jobs = [
        DecodeJob(path, {"few": FrameRequest(Uniform(frames=3), FrameTransform(size=(48, 32)))}, None, found)
        for path, found in probes.items()
        if not isinstance(found, BadMedia)
    ]
    assert len(jobs) == 3
    for job, events in chosen.stream(stream_frames, jobs):
        answer = gather(events)
        assert answer["few"].images.shape == (3, 1, 32, 48, 3)
        assert read_numbers(answer["few"].images) == answer["few"].indices.ravel().tolist()
        assert np.array_equal(answer["few"].pts, job.probe.pts[answer["few"].indices[:, 0]])


def _within(seconds: float, happened: Callable[[], bool]) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if happened():
            return True
        time.sleep(0.05)
    return False
