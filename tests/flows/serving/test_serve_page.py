"""The page to try a run, in a real browser: a clip is dropped, its caption and attention are seen, hostile words stay words."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flows.serving.app import make_app
from flows.serving.schemas import Limits
from tests.browser import CHROMIUM, Page, browser_page
from tests.flows.serving.serve_process import in_thread, served
from tests.flows.toy_place import Place

pytestmark = [pytest.mark.service, pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")]

ANSWERED = "document.querySelector('.result:not([hidden]), .state.bad')"
HOSTILE = "<script>document.title='owned'</script> <img src=x onerror=document.title='owned'> moves"
PIXEL = "data:image/gif;base64,R0lGODlhAQABAAAAACwAAAAAAQABAAAC"


class Parrot:
    """Gives every file the same caption: what matters is what the page makes of it."""

    metadata = {"run": HOSTILE, "recipe": "parrot", "dataset": "words", "trained_at": ""}  # noqa: RUF012

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        pass

    async def ask(self, path: Path, n_best: int, frames: bool, seconds: float) -> dict[str, Any]:
        attention = [[0.25, 0.75]] * len(HOSTILE.split(" "))
        candidate = {"caption": HOSTILE, "log_prob": -1.0, "attention": attention}
        pictures = [{"time": 0.0, "image": PIXEL}, {"time": 1.0, "image": PIXEL}]
        answer = {"caption": HOSTILE, "n_best": [candidate, candidate], "times": [0.0, 1.0], "duration": 2.0}
        return answer | {"frames": pictures, "seconds": 0.1}


@pytest.fixture
def chromium(tmp_path: Path) -> Iterator[Page]:
    with browser_page(tmp_path) as page:
        yield page


def shares(chromium: Page) -> list[int]:
    return chromium.value("[...document.querySelectorAll('.share')].map(s => parseInt(s.textContent))")


def test_a_clip_is_captioned_and_a_word_shows_where_it_looked(place: Place, tmp_path: Path, chromium: Page) -> None:
    (tmp_path / "tmp").mkdir()
    (tmp_path / "notes.mp4").write_text("Dear diary, this is no film.")
    clip = Path(shutil.copy(place.clip("test"), tmp_path / "my clip <b>.mp4"))
    with served(place.workspace.root, tmp_path / "tmp") as address:
        chromium.open(address, 1100, 800)
        chromium.choose_files("#file", clip)
        chromium.wait_for(f"!!{ANSWERED}")
        assert chromium.value("document.querySelector('.file').textContent") == clip.name
        words = chromium.value("[...document.querySelectorAll('.word')].map(w => w.textContent)")
        assert len(words) > 1 and chromium.value("document.querySelectorAll('.frame img').length") == 4
        assert chromium.value("[...document.querySelectorAll('.frame img')].every(i => i.naturalWidth > 20)")
        mean = shares(chromium)
        assert sum(mean) == pytest.approx(100, abs=3)
        chromium.point_at(".word:last-of-type")
        chromium.wait_for("document.querySelector('.attention').textContent.includes('looks most at')")
        assert f"“{words[-1]}”" in chromium.value("document.querySelector('.attention').textContent")
        assert chromium.value("document.querySelectorAll('.frame.top').length") == 1
        assert len(chromium.value("[...document.querySelectorAll('.others button')].map(b => b.textContent)")) == 5
        chromium.choose_files("#file", tmp_path / "notes.mp4")
        chromium.wait_for("!!document.querySelector('.state.bad')")
        assert "no video that Longtake knows" in chromium.value("document.querySelector('.state.bad').textContent")
    assert chromium.complaints == []
    assert all(url.startswith(address) for url in chromium.requests), "nothing is loaded from elsewhere"


def test_words_from_the_server_are_never_markup(tmp_path: Path, chromium: Page) -> None:
    (tmp_path / "any.mp4").write_bytes(b"x")
    with in_thread(make_app(Parrot(), Limits())) as address:
        chromium.open(address, 1100, 800)
        chromium.choose_files("#file", tmp_path / "any.mp4")
        chromium.wait_for(f"!!{ANSWERED}")
        assert chromium.value("document.querySelector('.others button span').textContent") == HOSTILE
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
