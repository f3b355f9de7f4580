"""The pages in a real browser: no request leaves, nothing overflows, words show their attention, thousands open at once."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tasks.reporting.frame_images import frames_per_video, to_webp
from tasks.reporting.pages import DuplicateClips, Region, ReportClip
from tasks.reporting.rendering import CLIPS_PER_PAGE, render_comparison, render_report
from tests.browser import CHROMIUM, Page, browser_page
from tests.tasks.reporting.toy_pages import EVIL, a_clip, a_comparison, a_report

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: 'apt-get install chromium' brings one"),
]


@pytest.fixture
def tab(tmp_path: Path) -> Iterator[Page]:
    with browser_page(tmp_path) as page:
        yield page


def written(folder: Path, html: str) -> Path:
    (folder / "page.html").write_text(html)
    return folder / "page.html"


def whole_report() -> str:
    regions = [[Region(0.0, (0.25, 0.5, 0.75, 1.0), 0.6)]]
    clips = [a_clip(n, cider=n / 2, caption=f"{EVIL} number {n}", attention=None) for n in range(CLIPS_PER_PAGE + 30)]
    clips.append(a_clip(900, cider=8.1, regions=regions, key_time=1.4))
    pairs = [DuplicateClips(clips[0], clips[1], 0.5, "mixed up")]
    return render_report(a_report(clips=clips, near_duplicates=pairs, critical_warnings=["random"], summary=["It ran."] * 5))


def look_for(tab: Page, words: str) -> None:
    """Type into the search box and wait until the gallery follows."""
    typed = f"const q = document.getElementById('query'); q.value = {words!r}; q.dispatchEvent(new Event('input'));"
    tab.value(f"new Promise((done) => {{ {typed} setTimeout(done, 400); }})")


@pytest.mark.parametrize("width", [1280, 390, 320])
def test_nothing_is_asked_for_nothing_complains_and_nothing_overflows(tab: Page, tmp_path: Path, width: int) -> None:
    for html in (whole_report(), render_comparison(a_comparison())):
        path = written(tmp_path, html)
        tab.events.clear()
        tab.open(path, width)
        assert tab.requests == [path.as_uri()]
        assert tab.complaints == []
        assert tab.value("document.documentElement.scrollWidth") <= width


def test_a_word_shows_its_attention_to_the_mouse_and_to_the_keyboard(tab: Page, tmp_path: Path) -> None:
    tab.open(written(tmp_path, whole_report()))
    look_for(tab, "vid900")
    assert tab.value("document.querySelectorAll('#gallery .clip').length") == 1
    tab.point_at("#gallery .word")
    assert (
        tab.value("document.querySelector('.attention').textContent")
        == "“a” looks most at frame 1 (0.0 s): 50 % of its attention. Boxes: where in the frames."
    )
    assert tab.value("document.querySelector('.box').parentElement.querySelector('img').alt") == "frame 1 at 0.0 s"
    tab.value("document.querySelector('#gallery .caption-words').focus()")
    tab.press("ArrowRight")
    tab.press("ArrowRight")
    assert "“circle” looks most at frame 2" in tab.value("document.querySelector('.attention').textContent")
    assert tab.value("document.querySelectorAll('.box').length") == 0  # only the first word has regions
    tab.press("Escape")
    assert "mean of all words" in tab.value("document.querySelector('.attention').textContent")


def test_clips_are_found_and_ordered_beyond_the_first_page(tab: Page, tmp_path: Path) -> None:
    tab.open(written(tmp_path, whole_report()))
    ids = "[...document.querySelectorAll('#gallery .clip')].slice(0, 3).map((clip) => clip.dataset.id)"
    tab.value("document.querySelector('input[value=\"rank desc\"]').click()")
    assert tab.value(ids) == ["vid53", "vid52", "vid51"]
    tab.value("document.querySelector('[data-go=last]').click()")
    assert tab.value("document.getElementById('where').textContent") == "Page 3 of 3"
    look_for(tab, "alert(1) NUMBER 47")
    assert tab.value(ids) == ["vid47"]
    assert tab.value("document.querySelector('#gallery .caption').textContent") == f"{EVIL} number 47"
    assert tab.value("document.scripts.length") == 1 + 31  # our own, and the data blocks


def test_colours_follow_the_button_and_text_stands_out_in_both(tab: Page, tmp_path: Path) -> None:
    tab.open(written(tmp_path, whole_report()))
    for theme in ("light", "dark"):
        tab.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
        for selector in (
            "body",
            ".quiet",
            ".tiles .value",
            ".critical",
            ".verdict",
            ".eyebrow",
            ".references h4",
            ".found small",
        ):
            assert tab.value(CONTRAST % selector) >= 4.5, (theme, selector)
    before = tab.value("getComputedStyle(document.body).backgroundColor")
    tab.value("document.getElementById('theme').click()")
    assert tab.value("getComputedStyle(document.body).backgroundColor") != before


CONTRAST = """(() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const light = (colour) => {
    canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
    const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].map((x) => x / 255)
      .map((x) => (x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  let element = document.querySelector("%s");
  const ink = light(getComputedStyle(element).color);
  while (getComputedStyle(element).backgroundColor === "rgba(0, 0, 0, 0)") element = element.parentElement;
  const paper = light(getComputedStyle(element).backgroundColor);
  return (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
})()"""


def test_three_thousand_videos_open_within_two_seconds_of_computing(tab: Page, tmp_path: Path) -> None:
    path = written(tmp_path, render_report(a_report(clips=many_clips(3000))))
    assert 20e6 < path.stat().st_size < 80e6  # as large as real pictures make it
    tab.ask("Performance.enable", timeDomain="threadTicks")
    tab.open(path)
    metrics = {metric["name"]: metric["value"] for metric in tab.ask("Performance.getMetrics")["metrics"]}
    assert metrics["ProcessTime"] < 2.0, metrics
    painted = tab.value("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    assert painted < tab.value("performance.getEntriesByType('navigation')[0].loadEventEnd")
    assert tab.value("document.getElementById('where').textContent") == f"Page 1 of {3000 // CLIPS_PER_PAGE}"


def many_clips(count: int) -> list[ReportClip]:
    """Clips with pictures that compress like photographs, 20 references and attention over 28 positions."""
    draw, choose = np.random.default_rng(0), random.Random(0)
    pictures = [to_webp(_photograph(draw), 112) for _ in range(60)]
    words = "a man is playing the guitar in a park while two dogs and one woman run".split()  # noqa: SIM905
    frames = frames_per_video(count, 8)
    clips = []
    for n in range(count):
        caption = choose.choices(words, k=9)
        weights = draw.dirichlet(np.full(28, 0.5), 9).tolist()
        references = [" ".join(choose.choices(words, k=10)) for _ in range(20)]
        chosen = [choose.choice(pictures) for _ in range(frames)]
        clip = a_clip(n, cider=150 * choose.random(), caption=" ".join(caption), attention=(caption, weights))
        clips.append(replace(clip, references=references, frames=chosen, frame_times=[float(t) for t in range(frames)]))
    return clips


def _photograph(draw: np.random.Generator) -> np.ndarray:
    picture = np.zeros((240, 320, 3))
    for size, strength in (((14, 10), 60), ((56, 42), 22), ((320, 240), 4)):
        for channel in range(3):
            noise = Image.fromarray(draw.normal(0, strength, size[::-1]).astype(np.float32))
            picture[..., channel] += np.asarray(noise.resize((320, 240), Image.Resampling.BICUBIC))
    return np.clip(picture + 128, 0, 255).astype(np.uint8)
