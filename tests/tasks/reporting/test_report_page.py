"""The report is one safe, complete, reproducible HTML file, whatever the data hold."""

from __future__ import annotations

import base64
import hashlib
import math
import re
from dataclasses import replace

import numpy as np
import pytest

from storage.errors import BadInput
from storage.neighbours import NearDuplicates
from tasks.reporting.charts import line_chart
from tasks.reporting.formatting import plain_number, readable_duration
from tasks.reporting.pages import CellAttention, Curve, DuplicateClips, Region, ReportClip, ReportPage, Score, StageLine
from tasks.reporting.published_scores import PublishedScores
from tasks.reporting.rendering import CLIPS_PER_PAGE, PROBLEMS_SHOWN, render_report
from tests.tasks.reporting.toy_pages import EMPTY, EVIL, SCRIPTS, Outline, a_clip, a_report, check_escaped, image


def test_the_page_is_well_formed_and_says_what_it_was_given():
    outline = Outline(render_report(a_report()))
    expected = ["A first try.", "features come from random weights", "demo world", "kind: demo", "2026-01-02 03:04 UTC"]
    expected += ["1.2 ", "40 test clips", "lower is better", "51.7", "1 min 15 s", "1,200"]
    expected += ["a red circle", "the circle is red", "97 %", "ends in the middle of a frame"]
    expected += ["i3d: applauding 62 %, marching 12 %"]
    assert [words for words in expected if words not in outline.text] == []


def test_everything_may_be_empty():
    outline = Outline(render_report(EMPTY))
    assert "No clips were captioned." in outline.text
    bare = ReportClip(video_id="v", split="", caption="")
    page = replace(EMPTY, clips=[bare, replace(bare, attention=([], []))], curves=[Curve("c", "", "", {})])
    text = Outline(render_report(page)).text
    assert "(an empty caption)" in text
    assert "No points were recorded." in text


def test_text_from_data_never_becomes_markup():
    clip = a_clip(
        video_id=EVIL,
        split=EVIL,
        caption=EVIL,
        references=[EVIL] * 5,
        scores={EVIL: 1.0},
        attention=([EVIL], [[1.0, 0.0]]),
        words=[(EVIL, 0.5)],
        classes={EVIL: [(EVIL, 0.5)]},
    )
    pair = DuplicateClips(clip, clip, 0.5, "mixed up")
    near = NearDuplicates(EVIL, EVIL, 0.0, (EVIL,), (EVIL,))
    marked_up = a_clip(caption=f"<b>{EVIL}".replace(" ", ""), attention=([f"<b>{EVIL}".replace(" ", "")], [[1.0]]))
    page = ReportPage(
        title=EVIL,
        recipe_name=EVIL,
        about=EVIL,
        made_at=EVIL,
        summary=[EVIL],
        metadata=[(EVIL, EVIL)],
        critical_warnings=[EVIL],
        warnings=[EVIL],
        not_shown=[EVIL],
        near_duplicates=[pair],
        training_duplicates=[(EVIL, near)],
        scores=[Score(EVIL, 1.0, True, EVIL, (0.5, 1.5)), Score("CIDEr", 1.0)],
        masking=[Curve(EVIL, EVIL, EVIL, {EVIL: [(0, 1.0), (1, 2.0)]})],
        curves=[Curve(EVIL, EVIL, EVIL, {EVIL: [(0, 1.0), (1, 2.0)]})],
        clips=[clip] * (CLIPS_PER_PAGE + 2) + [marked_up],
        problems=[(EVIL, EVIL, EVIL, EVIL)] * (PROBLEMS_SHOWN + 1),
        stages=[StageLine(EVIL, EVIL, 1.0, 1, EVIL, EVIL, EVIL)],
        recipe_yaml=EVIL,
        published=[PublishedScores(EVIL, {EVIL: 1.0, "CIDEr": 2.0}, EVIL)],
        published_note=EVIL,
    )
    html = render_report(page)
    check_escaped(html, blocks=3)
    assert Outline(html).text.count("alert(1)") > 100  # it is all there to be read


def test_only_the_reports_own_script_may_run_and_nothing_may_be_loaded():
    html = render_report(a_report())
    script = re.search(r"<script>(.*?)</script>", html, re.DOTALL)
    assert script is not None
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    policy = next(meta["content"] for meta in Outline(html).all("meta") if "http-equiv" in meta)
    assert f"script-src 'sha256-{digest}'" in str(policy)
    assert "default-src 'none'" in str(policy)


def test_no_reference_leaves_the_file():
    html = render_report(a_report())
    for tag, attributes in Outline(html).tags:
        for name in ("src", "href", "srcset", "action", "data", "poster", "xlink:href"):
            target = attributes.get(name)
            assert target is None or target.startswith(("data:image/", "#")), (tag, name, target)
    assert "url(" not in html
    assert "@import" not in html
    assert not re.search(r"https?://", html)


def test_same_page_same_text_and_input_order_does_not_matter():
    assert render_report(a_report()) == render_report(a_report())
    clips = [a_clip(n, cider=n / 2) for n in range(5)]
    assert render_report(a_report(clips=clips)) == render_report(a_report(clips=clips[::-1]))


def test_clips_nearest_to_the_median_come_first_and_unscored_ones_last():
    values = {0: 0.0, 1: 9.0, 2: 1.0, 10: 1.0, 3: math.nan}
    page = a_report(clips=[a_clip(n, cider=value) for n, value in values.items()])
    clips = [card for card in Outline(render_report(page)).all("article") if card["class"] == "clip"]
    assert [clip["data-id"] for clip in clips] == ["vid2", "vid10", "vid0", "vid1", "vid3"]
    assert "data-rank" not in clips[-1]


def test_a_score_where_lower_is_better_turns_best_and_worst_around():
    clips = [a_clip(scores={"WER": 0.1})]
    lower = a_report(clips=clips, scores=[Score("WER", 0.1, higher_is_better=False)])
    orders = [element.get("value") for element in Outline(render_report(lower)).all("input")]
    assert orders == [None, "index asc", "rank asc", "rank desc", "id asc"]  # most ordinary, best, worst, by id
    higher = [element.get("value") for element in Outline(render_report(a_report())).all("input")]
    assert higher == [None, "index asc", "rank desc", "rank asc", "id asc"]


def test_only_the_first_page_of_clips_is_laid_out():
    total = CLIPS_PER_PAGE + 7
    html = render_report(a_report(clips=[a_clip(n) for n in range(total)]))
    gallery, waiting = html.split('<div id="waiting"')
    assert gallery.count('<article class="clip"') == CLIPS_PER_PAGE
    assert waiting.count('<article class="clip"') == waiting.count(SCRIPTS) == 7
    assert len([clip for clip in Outline(html).all("article") if clip["class"] == "clip"]) == CLIPS_PER_PAGE
    assert "The other 7 clips" in html


def test_a_closing_token_is_left_out_and_words_that_differ_from_the_caption_stand_apart():
    follows = Outline(render_report(a_report(clips=[a_clip()])))
    assert [span["data-w"] for span in follows.all("span") if "data-w" in span] == ["500 500", "900 100", "200 800"]
    assert "<eos>" not in follows.text
    differs = Outline(render_report(a_report(clips=[a_clip(caption="A red circle.")])))
    assert "A red circle." in differs.text
    assert "<eos>" in differs.text


def test_attention_bars_show_the_mean_relative_to_the_tallest_weight():
    clip = a_clip(caption="x y", attention=(["x", "y"], [[0.8, 0.2, 0.0], [0.4, math.nan, 0.6]]))
    html = render_report(a_report(clips=[clip]))
    bars = html.split('class="bars"')[1].split("</div>")[0]
    assert re.findall(r"--h:([\d.]+)", bars) == ["0.750", "0.125", "0.375"]
    assert "data-timeline" in html.split("</script>", 1)[1]
    rows = a_report(clips=[replace(clip, timeline=False)])  # rows of several features, one after the other: no timeline
    assert "data-timeline" not in render_report(rows).split("</script>", 1)[1]


def test_frames_carry_their_format_size_and_time():
    images = Outline(render_report(a_report(clips=[a_clip()]))).all("img")
    assert [str(found["src"])[:15] for found in images] == ["data:image/jpeg", "data:image/webp"]
    assert base64.b64decode(str(images[0]["src"]).split(",")[1]) == image("red")
    assert (images[0]["width"], images[0]["height"], images[1]["alt"]) == ("16", "12", "frame 2 at 1.5 s")


def test_a_frame_that_is_no_image_is_named():
    with pytest.raises(BadInput, match=r"frame 1 of clip 'vid0'"):
        render_report(a_report(clips=[a_clip(frames=[image(), b"not an image"])]))


def test_a_name_that_is_not_unicode_can_be_written_to_a_file():
    written = render_report(a_report(problems=[("caf\udce9.mp4", "not_media", "no", "")])).encode("utf-8")
    assert b"caf" in written and b".mp4" in written


def test_a_word_carries_its_regions_on_the_frame_nearest_in_time():
    regions = [[Region(1.4, (0.25, 0.5, 0.75, 1.0), 0.6)], [], [Region(0.2, (0.5, 0.5, 0.5, 1.0), 0.9)]]
    spans = Outline(render_report(a_report(clips=[a_clip(regions=regions)]))).all("span")
    assert [span.get("data-r") for span in spans if "data-w" in span] == ["1 25 50 50 50 60", None, None]


def test_a_word_carries_the_heat_of_every_cell_on_the_frame_nearest_in_time():
    weights = np.zeros((3, 2, 4))
    weights[0, 0] = [0.2, 0.1, 0.0, 0.0]  # of a grid's frame at 0.2 s, which is shown on the frame at 0.0 s
    weights[2, 1, 3] = 0.5
    cells = CellAttention(weights, (0.2, 1.4), (0.5, 0.5))
    html = render_report(a_report(clips=[a_clip(cells=cells)]))
    heat = [span.get("data-m") for span in Outline(html).all("span") if "data-w" in span]
    assert heat == ["/gAA,", ",", ",AAA/"]
    assert "--l:31.2;--t:25.0;--w:37.5;--h:50.0" in html  # half of the short side of a frame of 4 : 3, in the middle


def test_a_picture_is_shown_as_a_picture():
    cells = CellAttention(np.full((3, 1, 4), 0.25), (0.0,))
    attention = (["a", "red", "circle"], [[1.0]] * 3)
    clip = a_clip(frames=[image()], frame_times=[0.0], attention=attention, cells=cells)
    html = render_report(a_report(clips=[clip]))
    assert 'class="strip photo"' in html and 'class="bars"' not in html
    assert "Point at a word" in Outline(html).text and "over time" not in Outline(html).text


def test_the_key_frame_is_marked_in_words_too():
    html = render_report(a_report(clips=[a_clip(key_time=1.2)]))
    assert [image["alt"] for image in Outline(html).all("img")] == ["frame 1 at 0.0 s", "frame 2 at 1.5 s, the key frame"]
    assert "◆ 1.5 s" in Outline(html).text and "◆ is the key frame" in Outline(html).text


def test_random_weights_are_said_before_anything_else():
    html = render_report(a_report(critical_warnings=["all weights are random"]))
    text = Outline(html).text
    assert text.index("Random weights all weights are random") < text.index("A first try.") < text.index("Scores CIDEr")


def test_scores_stand_with_their_intervals_beside_the_papers():
    score = Score("CIDEr", 48.25, interval=(45.5, 51.0))
    page = a_report(scores=[score], published=[PublishedScores("GL-RG", {"CIDEr": 60.6, "METEOR": 31.2}, "GL-RG")])
    html = render_report(page)
    assert "48.2 95 % interval 45.5 to 51.0" in Outline(html).text
    assert '<td class="figure">60.6</td><td class="figure">31.2</td><td>GL-RG</td>' in html
    scale = re.search(r'class="scale"[^>]*--a:([\d.]+);--b:([\d.]+);--v:([\d.]+)', render_report(page))
    assert scale is not None
    assert [float(x) for x in scale.groups()] == pytest.approx([0.455, 0.51, 0.4825], abs=1e-4)  # of a line to 100


def test_best_ordinary_and_worst_are_shown_where_there_are_enough_clips():
    few = render_report(a_report(clips=[a_clip(n, cider=n) for n in range(8)]))
    assert "Most ordinary" not in Outline(few).text
    text = Outline(render_report(a_report(clips=[a_clip(n, cider=n) for n in range(9)]))).text
    best, ordinary, worst = (text.index(title) for title in ("Best a red", "Most ordinary a red", "Worst a red"))
    assert best < text.index("vid8 · CIDEr 8.0") < ordinary < text.index("vid4 · CIDEr 4.0") < worst
    assert worst < text.index("vid0 · CIDEr 0.0")


def test_stages_tell_what_was_done_and_what_was_found_done():
    text = Outline(render_report(a_report())).text
    assert "1 of 2 stages were done in this run, in 1 min 15 s; 1 was found done, which saved 12 s." in text


@pytest.mark.parametrize(
    ("points", "paths", "dots"),
    [
        ([(3, 0.5)], 0, 1),
        ([(n, 2.0) for n in range(5)], 1, 5),
        ([(0, 1.0), (1, 2.0), (2, math.nan), (3, math.inf), (4, 2.0), (5, 1.0)], 2, 4),
        ([(0, 1.0), (1, math.nan), (2, 3.0)], 0, 2),
        ([(0, 0.0), (1, 5e-324)], 1, 2),
        ([(0, -1e299), (1, 1e299)], 1, 2),
        ([(1e16, 1e-9), (1e16 + 2, 1.0000000001e-9)], 1, 2),
    ],
)
def test_a_chart_draws_whatever_training_produced(points, paths, dots):
    chart = line_chart("t", "x", "y", {"s": points})
    Outline(chart)
    lines = re.findall(r'class="series s0" d="([^"]*)"', chart.split('class="legend"')[0])
    assert sum(line.count("M") for line in lines) == paths
    assert chart.count("<circle") == dots
    drawn = [float(y) for y in re.findall(r'cy="([^"]*)"', chart)]
    assert all(27.9 <= y <= 222.1 for y in drawn)
    assert "nan" not in chart
    assert "inf" not in chart
    assert chart.count("<text") < 24


def test_a_chart_without_a_finite_point_says_so():
    cases: list[dict[str, list[tuple[float, float]]]] = [{}, {"s": []}, {"s": [(0, math.nan)]}, {"s": [(math.nan, 1.0)]}]
    for series in cases:
        assert "No points were recorded." in line_chart("t", "x", "y", series)


def test_a_long_curve_is_thinned_but_keeps_its_spike():
    points = [(float(n), 1.0) for n in range(100_000)]
    points[50_001] = (50_001.0, 9.0)
    chart = line_chart("t", "x", "y", {"s": points})
    assert len(chart) < 40_000
    assert "between 1.00 and 9.00" in chart
    path = re.findall(r'd="(M[^"]{100,})"', chart)[0]
    heights = [float(pair.split()[1]) for pair in re.split("[ML]", path) if pair]
    assert min(heights) < 60 < 200 < max(heights)


def test_numbers_and_durations_read_as_people_write_them():
    numbers = [plain_number(x) for x in (0.4931, 4.2, 49.31, 1204, -3.25, 3e-5, 0.0, math.nan, None)]
    assert numbers == ["0.493", "4.20", "49.3", "1,204", "−3.25", "3.00e-05", "0.000", "–", "–"]
    durations = [readable_duration(x) for x in (0.004, 0.42, 9.96, 59.6, 185, 7621, None)]
    assert durations == ["0 s", "0.42 s", "10 s", "1 min 00 s", "3 min 05 s", "2 h 07 min", "–"]
