"""The page to try a run, in a real browser: a clip is dropped, its caption and attention are seen, hostile words stay words."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from flows.serving.app import make_app
from flows.serving.schemas import Limits
from tests.browser import CHROMIUM, Page, browser_page
from tests.flows.serving.serve_process import in_thread, served
from tests.flows.toy_place import Place
from tests.storage.films import FPS, film, write_film

pytestmark = [pytest.mark.service, pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")]

ANSWERED = "document.querySelector('.result:not([hidden]), .state.bad')"
TOP = "(name => document.querySelector('.clip-id').textContent === name)"
HOSTILE = "<script>document.title='owned'</script> <img src=x onerror=document.title='owned'> moves"
PIXEL = "data:image/gif;base64,R0lGODlhAQABAAAAACwAAAAAAQABAAAC"


class Parrot:
    """Gives every file the same caption: what matters is what the page makes of it."""

    metadata = {"run": "1", "recipe": HOSTILE, "dataset": "words", "trained_at": ""}  # noqa: RUF012

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        pass

    async def ask(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        attention = [[0.25, 0.75]] * len(HOSTILE.split(" "))
        candidate = {"caption": HOSTILE, "log_prob": -1.0, "attention": attention}
        pictures = [{"time": 0.0, "image": PIXEL}, {"time": 1.0, "image": PIXEL}]
        clip = {"start": 0.0, "end": 2.0, "caption": HOSTILE, "times": [0.0, 1.0], "frames": pictures}
        others = [candidate | {"caption": f"{HOSTILE} {n}", "log_prob": -n} for n in (2, 3)]
        texts = dict.fromkeys(("text", "csv", "srt", "vtt"), "")
        answer = {"file": request["name"], "duration": 2.0, "clips": [clip | {"n_best": [candidate, *others]}], "texts": texts}
        return answer | {"problems": [], "seconds": 0.1}


@pytest.fixture
def chromium(tmp_path: Path) -> Iterator[Page]:
    with browser_page(tmp_path) as page:
        yield page


def test_a_clip_is_captioned_and_a_word_shows_where_it_looked(place: Place, tmp_path: Path, chromium: Page) -> None:
    (tmp_path / "tmp").mkdir()
    (tmp_path / "notes.mp4").write_text("Dear diary, this is no film.")
    clip = Path(shutil.copy(place.clip("test"), tmp_path / "my clip <b>.mp4"))
    with served(place.workspace.root, tmp_path / "tmp") as address:
        chromium.open(address, 1100, 800)
        chromium.choose_files("#file", clip)
        chromium.wait_for(f"!!{ANSWERED}")
        assert chromium.value("document.querySelector('.clip-id').textContent") == clip.name
        words = chromium.value("[...document.querySelectorAll('.word')].map(w => w.textContent)")
        assert len(words) > 1 and chromium.value("document.querySelectorAll('.frame img').length") == 4
        assert chromium.value("[...document.querySelectorAll('.frame img')].every(i => i.naturalWidth > 20)")
        assert chromium.value("document.querySelectorAll('.bars i').length") == 4
        chromium.point_at(".word:last-of-type")
        chromium.wait_for("document.querySelector('.attention').textContent.includes('looks most at')")
        assert f"“{words[-1]}”" in chromium.value("document.querySelector('.attention').textContent")
        shown = chromium.value("[...document.querySelectorAll('.log-prob')].map(p => -parseFloat(p.textContent.slice(1)))")
        assert len(shown) == 5 and shown == sorted(shown, reverse=True), "sorted by what it shows"
        pressed = chromium.value("document.querySelector('.candidates [aria-pressed=true] .words').textContent")
        assert pressed.split() == words, "the caption of the run's own search, wherever it stands"
        chromium.choose_files("#file", tmp_path / "notes.mp4")
        chromium.wait_for("!!document.querySelector('.state.bad')")
        assert "no video that Longtake knows" in chromium.value("document.querySelector('.state.bad').textContent")
    assert chromium.complaints == []
    assert all(url.startswith((address, f"blob:{address}")) for url in chromium.requests), "nothing is loaded from elsewhere"


NOW = "[...document.querySelectorAll('.frames li')].findIndex(frame => frame.classList.contains('now'))"
SHOT = "[...document.querySelectorAll('.shots button')].findIndex(shot => shot.classList.contains('now'))"


def saved(chromium: Page, folder: Path, name: str) -> str:
    """What a click on a link saves."""
    chromium.ask("Page.setDownloadBehavior", behavior="allow", downloadPath=str(folder))
    chromium.click(f".tools a[download='{name}']")
    deadline = time.monotonic() + 60
    while not (folder / name).exists():
        assert time.monotonic() < deadline, f"{name} is not saved"
        time.sleep(0.1)
    return (folder / name).read_text()


def test_a_film_is_played_cut_into_shots_and_saved(place: Place, tmp_path: Path, chromium: Page) -> None:
    (tmp_path / "tmp").mkdir()
    (tmp_path / "saved").mkdir()
    path = write_film(tmp_path / "film.mp4", film([3, 2, 4]), FPS)
    with served(place.workspace.root, tmp_path / "tmp") as address:
        chromium.open(address, 1100, 900)
        chromium.choose_files("#file", path)
        chromium.wait_for(f"!!{ANSWERED}")
        chromium.wait_for("document.querySelector('video').readyState > 2")
        assert chromium.value("document.querySelector('video').duration") == pytest.approx(9, abs=0.1)
        chromium.click(".frames li:nth-child(3) .frame")
        chromium.wait_for(f"{NOW} === 2")
        chromium.click(".cut")
        chromium.wait_for("document.querySelectorAll('.shots button').length === 3")
        assert "3 shots" in chromium.value("document.querySelector('.details').textContent")
        chromium.click(".shots li:nth-child(2) button")
        chromium.wait_for(f"!document.querySelector('video').paused && {SHOT} === 1 && {NOW} > 0")
        chromium.wait_for("document.querySelector('video').paused", 20)
        stopped = chromium.value("document.querySelector('video').currentTime")
        assert 5 <= stopped < 5.5, "it plays that part alone"
        captions = chromium.value("[...document.querySelectorAll('.shots .words')].map(w => w.textContent)")
        cues = chromium.value("[...document.querySelector('video').textTracks[0].cues].map(c => c.text)")
        assert cues == captions, "subtitles in the player"
        texts = {ending: saved(chromium, tmp_path / "saved", f"film.{ending}") for ending in ("srt", "vtt", "csv", "txt")}
        assert texts["srt"].count(" --> ") == 3 and "00:00:03,000 --> 00:00:05,000" in texts["srt"]
        assert texts["csv"].splitlines()[1].startswith("film.mp4,0.000,3.000,1,")
        assert texts["vtt"].startswith("WEBVTT") and "film.mp4 [0:03.0-0:05.0]" in texts["txt"]
        chromium.click(".cut")
        chromium.wait_for("document.querySelector('.shots').hidden && document.querySelectorAll('.frames li').length === 4")
    assert chromium.complaints == []
    assert all(url.startswith((address, f"blob:{address}")) for url in chromium.requests)


def test_what_the_browser_cannot_play_falls_back_to_the_frames(place: Place, tmp_path: Path, chromium: Page) -> None:
    (tmp_path / "tmp").mkdir()
    Image.new("RGB", (640, 480), "red").save(tmp_path / "photo.png")
    Image.new("RGB", (640, 480), "red").save(tmp_path / "photo.tiff")
    write_film(tmp_path / "old.avi", film([3]), FPS)  # an AVI, which no browser plays
    with served(place.workspace.root, tmp_path / "tmp") as address:
        chromium.open(address, 1100, 900)
        for name, shown in (
            ("photo.png", "document.querySelector('.player img')?.naturalWidth === 640 && $0('.strip').hidden"),
            ("photo.tiff", "$0('.player p') && $0('.frames img').clientWidth > 60 && !$0('.strip').hidden"),
            (
                "old.avi",
                "$0('.player p').textContent.includes('cannot play') && document.querySelectorAll('.frames li').length >= 4",
            ),
        ):
            chromium.choose_files("#file", tmp_path / name)
            chromium.wait_for(f"!!document.querySelector('.clip .result:not([hidden])') && $1('{name}')".replace("$1", TOP))
            chromium.wait_for(f"!!({shown})".replace("$0", "document.querySelector"))
            chromium.value("document.querySelector('#cards').replaceChildren()")
    assert chromium.complaints == []


def test_a_sample_needs_no_file(place: Place, tmp_path: Path, chromium: Page) -> None:
    (tmp_path / "tmp").mkdir()
    with served(place.workspace.root, tmp_path / "tmp") as address:
        chromium.open(address, 1100, 900)
        chromium.wait_for("!document.querySelector('#sample').disabled")
        assert "test split of toy" in chromium.value("document.querySelector('#about-sample').textContent")
        chromium.click("#sample")
        chromium.wait_for(f"!!{ANSWERED}")
        assert chromium.value("document.querySelector('.clip-id').textContent") == place.clip("test").name
        assert chromium.value("document.querySelectorAll('.references li').length") > 1
    assert chromium.complaints == []


def test_words_from_the_server_are_never_markup(tmp_path: Path, chromium: Page) -> None:
    (tmp_path / "any.mp4").write_bytes(b"x")
    with in_thread(make_app(Parrot(), Limits())) as address:
        chromium.open(address, 1100, 800)
        chromium.choose_files("#file", tmp_path / "any.mp4")
        chromium.wait_for(f"!!{ANSWERED}")
        assert chromium.value("document.querySelector('.candidates button span').textContent") == HOSTILE
        assert HOSTILE in chromium.value("document.querySelector('#run').textContent")
        assert chromium.value("document.querySelectorAll('main script, main img[src=x], header script').length") == 0
        assert chromium.value("document.title") == "Longtake: try it"
    assert chromium.complaints == []


@pytest.mark.parametrize("width", [360, 1100])
def test_nothing_sticks_out_of_a_narrow_screen(tmp_path: Path, chromium: Page, width: int) -> None:
    (tmp_path / f"{'a' * 120}.mp4").write_bytes(b"x")
    with in_thread(make_app(Parrot(), Limits())) as address:
        chromium.open(address, width, 800)
        chromium.choose_files("#file", tmp_path / f"{'a' * 120}.mp4")
        chromium.wait_for(f"!!{ANSWERED}")
        assert chromium.value("document.documentElement.scrollWidth") <= width
