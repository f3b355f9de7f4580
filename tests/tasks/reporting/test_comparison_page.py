"""The page that compares runs: everything said, nothing of the data taken for markup, no request."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from tasks.reporting.comparison_page import ComparedClip, ComparisonPage, PairedScore, Pairing, RunColumn, Told
from tasks.reporting.page import Curve, Score
from tasks.reporting.rendering import CLIPS_A_PAGE, render_comparison
from tests.tasks.reporting.test_page import EVIL, Outline, check_escaped, image


def a_run(label: str, cider: float, **changes: Any) -> RunColumn:
    scores = {"CIDEr": Score("CIDEr", cider, interval=(cider - 5, cider + 5))}
    run = RunColumn(label, f"demo-{label}", f"run-{label}", "2026-01-02T03:04:05Z", "an LSTM", "60 test videos", scores)
    return replace(run, **changes)


def a_clip(n: int, **changes: Any) -> ComparedClip:
    told = [Told("A", "a red circle", 80.0), Told("B", "a red disc rolls", 120.0, best=True)]
    return replace(ComparedClip(f"v{n}", "test", told, ["red"], [image()], [0.5], 40.0 + n, 40.0 + n), **changes)


def a_page(**changes: Any) -> ComparisonPage:
    page = ComparisonPage(
        title="A · B",
        runs=[a_run("A", 50.0), a_run("B", 60.0)],
        pairings=[Pairing("B", "A", [PairedScore("CIDEr", 10.0, 2.5, 17.0, 0.004)])],
        settings=[("decoding.width", ["1", "5"]), ("boosting.epochs", [None, "70"])],
        curves=[Curve("Seeding: loss", "epoch", "loss", {"A demo": [(1, 2.0)], "B demo": [(1, 1.5)]})],
        clips=[a_clip(0)],
    )
    return replace(page, **changes)


def test_scores_differences_settings_and_captions_stand_side_by_side():
    html = render_comparison(a_page())
    text = Outline(html).text
    assert "1 setting that only some" in text
    told = [
        "Comparison of 2 runs",
        "45.0 to 55.0",
        "55.0 to 65.0",
        "decoding.width",
        "a red circle",
        "a red disc rolls",
    ]
    assert [words for words in told if words not in text] == []
    row = re.search(r'<tr class="sure">.*?</tr>', html, re.DOTALL)
    assert row is not None and [word in row[0] for word in ("+10.0", "+2.50 to +17.0", "0.004")] == [True] * 3


def test_intervals_of_a_score_share_one_scale():
    html = render_comparison(a_page()).split("</script>", 1)[1]
    places = re.findall(r"--a:([\d.]+);--b:([\d.]+);--v:([\d.]+)", html)
    (low_a, high_a, a), (low_b, high_b, b) = [[float(x) for x in place] for place in places]
    assert 0 < low_a < a < low_b < b < high_b < 1 and abs(high_a - low_b) < 1e-3


def test_runs_that_cannot_be_compared_say_why():
    page = a_page(pairings=[Pairing("B", "A", why_not="scored on other videos")])
    assert "scored on other videos" in Outline(render_comparison(page)).text


def test_text_from_data_never_becomes_markup():
    run = a_run(
        "A", 1.0, title=EVIL, run_id=EVIL, captioner=EVIL, videos=EVIL, other_figures={EVIL: EVIL}, alarms=[EVIL]
    )
    clip = a_clip(0, video_id=EVIL, split=EVIL, told=[Told("A", EVIL, 1.0)], references=[EVIL] * 5)
    page = ComparisonPage(
        title=EVIL,
        runs=[run, replace(run, label="B")],
        pairings=[Pairing("B", "A", why_not=EVIL), Pairing("B", "A", [PairedScore(EVIL, 1.0, 0.5, 2.0, 0.1)])],
        settings=[(EVIL, [EVIL, EVIL])],
        curves=[Curve(EVIL, EVIL, EVIL, {EVIL: [(0, 1.0), (1, 2.0)]})],
        clips=[clip] * (CLIPS_A_PAGE + 2),
        notes=[EVIL],
    )
    check_escaped(render_comparison(page), blocks=2)


def test_no_reference_leaves_the_file():
    html = render_comparison(a_page())
    links = [a.get("href") or a.get("src") for tag in ("a", "img", "link", "script") for a in Outline(html).all(tag)]
    assert all(link is None or link.startswith(("#", "data:image/")) for link in links)
    assert not re.search(r"https?://|url\(|@import", html)


def test_a_run_that_did_not_caption_a_video_says_so():
    html = render_comparison(a_page(clips=[a_clip(0, told=[Told("A", None), Told("B", "", 0.0)])]))
    assert "not captioned" in Outline(html).text and "(an empty caption)" in Outline(html).text
