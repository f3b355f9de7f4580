"""`longtake serve` over real HTTP: captions with attention, and nothing that a visitor sends ends it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
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
from tests.storage.films import FPS, film, write_film

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
    (found,) = answer.json()["clips"]
    assert found["caption"] == expected.caption and len(found["n_best"]) == 2
    (own,) = [row for row in found["n_best"] if row["caption"] == expected.caption]
    assert own["attention"] == expected.attention and len(own["attention"][0]) == 4
    assert found["n_best"][0]["log_prob"] >= found["n_best"][1]["log_prob"], "sorted by what is shown"
    assert len(found["times"]) == len(found["frames"]) == 4
    assert [frame["time"] for frame in found["frames"]] == pytest.approx(found["times"]), "each position has its frame"
    assert all(frame["image"].startswith("data:image/jpeg;base64,/9j/") for frame in found["frames"])
    assert left_behind(shared) == before, "neither the upload nor tables of it are kept"


def test_a_film_is_answered_shot_by_shot_and_as_files_for_players(address: str, shared: Place, tmp_path: Path) -> None:
    path = write_film(tmp_path / "film.mp4", film([3, 2, 4]), FPS)
    found = send(address, path.read_bytes(), shots=True).json()
    assert [(clip["start"], clip["end"]) for clip in found["clips"]] == [(0, 3), (3, 5), (5, 9)] and found["duration"] == 9
    for clip in found["clips"]:
        times = [frame["time"] for frame in clip["frames"]]
        assert clip["caption"] and times == pytest.approx(clip["times"]), "seconds of the film"
        assert clip["start"] <= times[0] and times[-1] < clip["end"]
    for format, kind in (("srt", "application/x-subrip"), ("vtt", "text/vtt")):  # cut by themselves
        answer = send(address, path.read_bytes(), format=format, n_best=1)
        assert answer.headers["content-type"].startswith(kind) and answer.text == found["texts"][format]
        assert answer.text.count(" --> ") == 3
    whole = send(address, path.read_bytes(), format="csv", n_best=1).text.splitlines()
    assert whole[0].startswith("file,start") and len(whole) == 2 and whole[1].startswith("upload,0.000,9.000,1,")
    assert send(address, path.read_bytes(), format="exe").status_code == 422


def form(address: str, body: bytes, kind: str = "multipart/form-data; boundary=x") -> httpx.Response:
    return httpx.post(f"{address}/api/captions", content=body, headers={"Content-Type": kind}, timeout=300)


def test_a_form_is_taken_like_a_body_and_its_file_name_stays_a_text(address: str, shared: Place) -> None:
    before, data = left_behind(shared), shared.clip("test").read_bytes()
    name = "../../etc/=cmd|'/c calc'!A1 é.mp4"
    url = f"{address}/api/captions?frames=false"
    answer = httpx.post(url, files={"file": (name, data, "video/mp4")}, timeout=300).json()
    assert answer["clips"] == send(address, data, frames=False).json()["clips"] and answer["file"] == name.rpartition("/")[2]
    assert ",\n" not in answer["texts"]["csv"] and "\n=cmd" not in answer["texts"]["csv"], "no formula"
    assert left_behind(shared) == before


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl here: 'apt-get install curl' brings one")
def test_curl_sends_a_form(address: str, shared: Place) -> None:
    clip = shared.clip("test")
    curl = ["curl", "-sS", "-F", f"file=@{clip}", f"{address}/api/captions?frames=false&format=text"]
    printed = subprocess.run(curl, capture_output=True, text=True, check=True).stdout
    caption = send(address, clip.read_bytes(), frames=False).json()["clips"][0]["caption"]
    assert printed.splitlines()[0] == f"{clip.name}: {caption}"


HEAD = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.mp4"\r\n\r\n'


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "ends in the middle"),
        (b"--x--\r\n", "ends in the middle"),
        (b"a" * 20_000, "does not begin with a file"),
        (HEAD.replace(b"filename", b"title") + b"abc\r\n--x--\r\n", "does not begin with a file"),
        (b"preamble\r\n" + HEAD + b"abc\r\n--x--\r\n", "does not begin with a file"),
        (HEAD + b"abc\r\n--y--\r\n", "ends in the middle"),
        (HEAD + b"abc\r\n--x\r\n" + HEAD + b"abc\r\n--x--\r\n", "more than a file"),
        (HEAD + b"abc\r\n--x", "ends in the middle"),
    ],
)
def test_a_crafted_form_is_refused_with_a_reason(address: str, shared: Place, body: bytes, reason: str) -> None:
    before = left_behind(shared)
    answer = form(address, body)
    assert answer.status_code == 400 and reason in answer.json()["reason"] and "curl -F file=@" in answer.json()["reason"]
    assert left_behind(shared) == before


def test_a_form_keeps_the_limits_of_a_body(address: str, shared: Place) -> None:
    assert form(address, b"", "multipart/form-data").status_code == 400, "no boundary"
    assert form(address, HEAD + b"\r\n--x--\r\n").status_code == 415, "an empty file"
    assert form(address, HEAD + bytes(int(MEGABYTES * 1e6) + 1) + b"\r\n--x--\r\n").status_code == 413
    largest = form(address, HEAD + bytes(int(MEGABYTES * 1e6)) + b"\r\n--x--\r\n")
    assert largest.status_code == 415 and "no video that Longtake knows" in largest.json()["reason"], "it came as a whole"
    head = (
        "POST /api/captions HTTP/1.1\nHost: 127.0.0.1\nTransfer-Encoding: chunked\nContent-Type: multipart/form-data; boundary=x"
    )
    first = b"%x\r\n" % len(HEAD) + HEAD + b"\r\n"
    answer = raw(address, head, first, *repeat(b"10000\r\n" + b"\0" * 0x10000 + b"\r\n", 800))
    assert answer.startswith("HTTP/1.1 413") and left_behind(shared) == []


def test_the_sample_is_a_test_clip_of_the_run_with_what_people_wrote(address: str, shared: Place) -> None:
    run = httpx.get(f"{address}/api/run", timeout=60)
    sample, clip = run.json()["sample"], shared.clip("test")
    assert sample["name"] == clip.name and "test split of toy" in sample["about"] and len(sample["captions"]) > 1
    assert httpx.get(f"{address}/api/sample", timeout=60).content == clip.read_bytes()
    assert str(shared.root) not in run.text, "where the data lies is nobody's business"


def test_where_others_can_reach_the_page_the_sample_is_drawn(shared: Place, tmp_path: Path) -> None:
    with served(shared.workspace.root, tmp_path, "--host", "0.0.0.0") as address:
        sample = httpx.get(f"{address}/api/run", timeout=60).json()["sample"]
        assert "drawn" in sample["about"] and sample["captions"]
        assert httpx.get(f"{address}/api/sample", timeout=60).content[4:8] == b"ftyp"


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
    assert len({answer.json()["clips"][0]["caption"] for answer in answers if answer.status_code == 200}) == 1
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
    assert "<script>" not in page.text and "style=" not in page.text and "http" not in page.text.replace("http://www", "")
    assert "media-src blob:" in policy and "blob:" not in policy.partition("script-src")[2].partition(";")[0]
    described = httpx.get(f"{address}/api/openapi.json", timeout=60).json()
    upload = described["paths"]["/api/captions"]["post"]
    assert {"application/octet-stream", "multipart/form-data"} == upload["requestBody"]["content"].keys()
    assert {"200", "400", "413", "415", "503", "504"} <= upload["responses"].keys()
    assert {"application/json", "text/vtt", "text/csv", "text/plain"} <= upload["responses"]["200"]["content"].keys()
    assert {"n_best", "frames", "shots", "format"} == {parameter["name"] for parameter in upload["parameters"]}
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
