"""The page that compares runs: everything said, nothing of the data taken for markup, no request."""

from __future__ import annotations

import re
from dataclasses import replace

from tasks.reporting.pages import ComparisonPage, Curve, RunCaption, RunDifference, Score, ScoreDifference
from tasks.reporting.rendering import CLIPS_PER_PAGE, render_comparison
from tests.tasks.reporting.toy_pages import EVIL, Outline, a_compared_clip, a_comparison, a_run, check_escaped

FEW_DIFFERENCES = [RunDifference("B", "A", [ScoreDifference("CIDEr", 10.0)])]


def test_scores_differences_settings_and_captions_stand_side_by_side():
    html = render_comparison(a_comparison())
    text = Outline(html).text
    assert "1 setting that only some" in text
    expected = ["Comparison of 2 runs", "45.0 to 55.0", "55.0 to 65.0", "decoding.width", "a red circle", "a red disc rolls"]
    assert [words for words in expected if words not in text] == []
    row = re.search(r'<tr class="significant">.*?</tr>', html, re.DOTALL)
    assert row is not None and [word in row[0] for word in ("+10.0", "+2.5 to +17.0", "0.004")] == [True] * 3


def test_of_few_videos_there_is_a_difference_but_no_interval_and_no_significance():
    runs = [a_run(label, 50.0, scores={"CIDEr": Score("CIDEr", 50.0)}) for label in "AB"]
    text = Outline(html := render_comparison(a_comparison(runs=runs, differences=FEW_DIFFERENCES))).text
    assert "+10.0" in text and 'class="significant"' not in html
    assert [words for words in ("interval", "chance", "one-sided") if words in text] == []


def test_intervals_of_a_score_share_one_scale():
    html = render_comparison(a_comparison()).split("</script>", 1)[1]
    spans = re.findall(r"--a:([\d.]+);--b:([\d.]+);--v:([\d.]+)", html)
    (low_a, high_a, a), (low_b, high_b, b) = [[float(x) for x in span] for span in spans]
    assert 0 < low_a < a < low_b < b < high_b < 1 and abs(high_a - low_b) < 1e-3


def test_runs_that_cannot_be_compared_say_why():
    page = a_comparison(differences=[RunDifference("B", "A", why_not="scored on other videos")])
    assert "scored on other videos" in Outline(render_comparison(page)).text


def test_text_from_data_never_becomes_markup():
    run = a_run(
        "A", 1.0, title=EVIL, run_id=EVIL, captioner=EVIL, videos=EVIL, other_metrics={EVIL: EVIL}, critical_warnings=[EVIL]
    )
    clip = a_compared_clip(0, video_id=EVIL, split=EVIL, captions=[RunCaption("A", EVIL, 1.0)], references=[EVIL] * 5)
    page = ComparisonPage(
        title=EVIL,
        runs=[run, replace(run, label="B")],
        differences=[RunDifference("B", "A", why_not=EVIL), RunDifference("B", "A", [ScoreDifference(EVIL, 1.0, 0.5, 2.0, 0.1)])],
        settings=[(EVIL, [EVIL, EVIL])],
        curves=[Curve(EVIL, EVIL, EVIL, {EVIL: [(0, 1.0), (1, 2.0)]})],
        clips=[clip] * (CLIPS_PER_PAGE + 2),
        notes=[EVIL],
    )
    check_escaped(render_comparison(page), blocks=2)


def test_no_reference_leaves_the_file():
    html = render_comparison(a_comparison())
    links = [a.get("href") or a.get("src") for tag in ("a", "img", "link", "script") for a in Outline(html).all(tag)]
    assert all(link is None or link.startswith(("#", "data:image/")) for link in links)
    assert not re.search(r"https?://|url\(|@import", html)


def test_a_run_that_did_not_caption_a_video_says_so():
    html = render_comparison(a_comparison(clips=[a_compared_clip(0, captions=[RunCaption("A", None), RunCaption("B", "", 0.0)])]))
    assert "not captioned" in Outline(html).text and "(an empty caption)" in Outline(html).text
