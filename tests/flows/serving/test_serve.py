"""`longtake serve` over real HTTP: captions with attention, and nothing that a visitor sends ends it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import repeat
from pathlib import Path

import httpx
import pytest

from flows.serving.app import make_app
from flows.serving.schemas import Limits
from flows.serving.worker import CaptionWorker
from storage.results import read_captions
from tests.flows.conftest import Longtake
from tests.flows.serving.serve_process import in_thread, raw, served
from tests.flows.toy_place import Place

WAITING = 12
MEGABYTES = 3.0


@pytest.fixture(scope="module")
def shared(finished_place: Path, tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(Path(shutil.copytree(finished_place, tmp_path_factory.mktemp("served") / "place")))


@pytest.fixture(scope="module")
def address(shared: Place) -> Iterator[str]:
    (shared.root / "tmp").mkdir()
    limits = ("--megabytes", str(MEGABYTES), "--waiting", str(WAITING))
    with served(shared.workspace.root, shared.root / "tmp", *limits) as found:
        yield found
    assert not list((shared.root / "tmp").glob("longtake-serve-*")), "its folder of uploads goes with it"


def send(address: str, data: bytes, **query: object) -> httpx.Response:
    return httpx.post(f"{address}/api/captions", content=data, params=query, timeout=300)  # type: ignore[arg-type]


def left_behind(shared: Place) -> list[Path]:
    """Uploads and tables of uploads that are still there."""
    uploads = list((shared.root / "tmp").glob("longtake-serve-*/*"))
    return uploads + list(shared.workspace.root.glob("artimetadata/catalogue/*"))


def processes(shared: Place) -> list[int]:
    """The captioning processes on this workspace."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            command = entry.read_text()
            if "flows.serving.caption_process" in command and str(shared.workspace.root) in command:
                found.append(int(entry.parent.name))
    return found


def test_an_upload_has_the_caption_of_evaluation_with_frames_and_attention(address: str, shared: Place) -> None:
    before = left_behind(shared)
    rows = {row.video_id: row for row in read_captions(shared.folder("caption"))}
    expected = next(rows[id] for id, record in shared.records.items() if shared.clip("test") == shared.data / str(record.source))
    answer = send(address, shared.clip("test").read_bytes(), n_best=2)
    assert answer.status_code == 200
    found = answer.json()
    assert found["caption"] == found["n_best"][0]["caption"] == expected.caption and len(found["n_best"]) == 2
    assert found["n_best"][0]["attention"] == expected.attention and len(found["n_best"][0]["attention"][0]) == 4
    assert len(found["times"]) == len(found["frames"]) == 4
    assert [frame["time"] for frame in found["frames"]] == pytest.approx(found["times"]), "each position has its frame"
    assert all(frame["image"].startswith("data:image/jpeg;base64,/9j/") for frame in found["frames"])
    assert left_behind(shared) == before, "neither the upload nor tables of it are kept"


@pytest.mark.parametrize(
    ("data", "reason"), [(b"Dear diary, this is no film.\n" * 99, "no video that Longtake knows"), (b"", "nothing was sent")]
)
def test_what_is_no_video_is_refused_with_a_reason(address: str, data: bytes, reason: str) -> None:
    answer = send(address, data)
    assert answer.status_code == 415 and reason in answer.json()["reason"]
    assert "longtake-serve" not in answer.text, "where the server keeps its files is nobody's business"


def test_five_gigabytes_are_refused_before_they_are_sent(address: str) -> None:
    answer = raw(address, f"POST /api/captions HTTP/1.1\nHost: 127.0.0.1\nContent-Length: {5 * 10**9}")
    assert answer.startswith("HTTP/1.1 413") and "larger than 3 MB" in answer


def test_an_upload_that_does_not_say_its_size_is_cut_off_at_the_limit(address: str, shared: Place) -> None:
    before = left_behind(shared)
    head = "POST /api/captions HTTP/1.1\nHost: 127.0.0.1\nTransfer-Encoding: chunked"
    block = b"10000\r\n" + b"\0" * 0x10000 + b"\r\n"
    answer = raw(address, head, *repeat(block, 800))
    assert answer.startswith("HTTP/1.1 413") and "larger than 3 MB" in answer and left_behind(shared) == before


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        ("GET / HTTP/1.1\nHost: evil.example", "is not called that"),
        ("GET /api/run HTTP/1.1\nHost: 127.0.0.1.evil.example", "is not called that"),
        ("GET / HTTP/1.0", "is not called that"),
        ("POST /api/captions HTTP/1.1\nHost: localhost\nOrigin: http://evil.example\nContent-Length: 1", "from elsewhere"),
        ("POST /api/captions HTTP/1.1\nHost: localhost\nOrigin: null\nContent-Length: 1", "from elsewhere"),
    ],
)
def test_pages_of_other_names_cannot_reach_it(address: str, head: str, reason: str) -> None:
    answer = raw(address, f"{head}\nConnection: close")
    assert answer.split()[1] == "403" and reason in answer


def test_twenty_uploads_at_once_are_answered_or_asked_to_come_again(address: str, shared: Place) -> None:
    data = shared.clip("test", 1).read_bytes()
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda _: send(address, data, frames=False), range(20)))
    states = [answer.status_code for answer in answers]
    assert set(states) <= {200, 503} and states.count(200) >= WAITING + 1
    assert all(answer.headers["Retry-After"] for answer in answers if answer.status_code == 503)
    assert len({answer.json()["caption"] for answer in answers if answer.status_code == 200}) == 1
    assert send(address, data, frames=False).status_code == 200


def test_the_captioning_process_may_die_and_another_takes_over(address: str, shared: Place) -> None:
    data = shared.clip("test", 1).read_bytes()
    (mine,) = processes(shared)  # one model in memory
    os.kill(mine, signal.SIGKILL)
    states = [send(address, data, frames=False).status_code for _ in range(2)]
    assert states in ([200, 200], [500, 200])


def test_the_page_is_safe_and_the_api_describes_itself(address: str) -> None:
    page = httpx.get(address, timeout=60)
    policy = page.headers["content-security-policy"]
    assert page.status_code == 200 and "unsafe" not in policy and "default-src 'none'" in policy
    assert page.headers["x-content-type-options"] == "nosniff"
    assert page.text.count("<script") == 1 and "style=" not in page.text and "http" not in page.text.replace("http://www", "")
    described = httpx.get(f"{address}/api/openapi.json", timeout=60).json()
    upload = described["paths"]["/api/captions"]["post"]
    assert "application/octet-stream" in upload["requestBody"]["content"]
    assert {"200", "413", "415", "503", "504"} <= upload["responses"].keys()
    metadata = httpx.get(f"{address}/api/run", timeout=60).json()
    assert metadata["recipe"] == "toy" and metadata["megabytes"] == MEGABYTES
    assert httpx.get(f"{address}/../../etc/passwd", timeout=60).status_code == 404


def test_a_video_that_takes_too_long_is_given_up_and_its_process_ended(shared: Place) -> None:
    worker, before = CaptionWorker(shared.workspace.root, None), processes(shared)
    with in_thread(make_app(worker, Limits(seconds=0.001))) as address:  # nobody is so quick
        answer = send(address, shared.clip("test").read_bytes())
        assert answer.status_code == 504 and "took longer than 0.001 s" in answer.json()["reason"]
        assert processes(shared) == before, "what it was doing has ended too"
        assert httpx.get(f"{address}/api/run", timeout=60).json()["recipe"] == "toy"


def test_uploads_that_stop_or_break_off_free_their_place(shared: Place) -> None:
    worker = CaptionWorker(shared.workspace.root, None)  # it is not started: no upload comes so far
    head = "POST /api/captions HTTP/1.1\nHost: localhost\nContent-Length: 1000"
    with in_thread(make_app(worker, Limits(stalled=0.5, waiting=0))) as address:
        assert raw(address, head, b"some").startswith("HTTP/1.1 408")
        host, _, port = address.removeprefix("http://").rpartition(":")
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(head.replace("\n", "\r\n").encode() + b"\r\n\r\nsome")
        time.sleep(0.2)
        assert send(address, b"").status_code == 415, "neither full (503) nor dead"


def test_a_run_that_is_not_there_is_said_before_serving(longtake: Longtake, shared: Place) -> None:
    answer = longtake("serve", "nonsense", "-w", shared.workspace.root, "--port", "0")
    assert answer.code == 2 and "no finished run is called 'nonsense'" in answer.err
