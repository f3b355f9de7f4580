"""The report is one safe, complete, reproducible HTML file, whatever the data hold."""

from __future__ import annotations

import base64
import hashlib
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from io import BytesIO
from typing import Any

import pytest
from PIL import Image

from storage.errors import BadInput
from storage.neighbours import NearDuplicates
from tasks.reporting.charts import line_chart, plain_number
from tasks.reporting.page import Clip, Curve, DuplicateClips, Region, ReportPage, Score, StageLine
from tasks.reporting.published import Published
from tasks.reporting.rendering import CLIPS_A_PAGE, PROBLEMS_SHOWN, readable_duration, render_report

SCRIPTS = '<script type="text/template"'
VOID = {"meta", "img", "input", "br", "hr", "link"}
EVIL = "</script><script>alert(1)</script><!--<script><img src=x onerror=alert(2)>\"'&\u2028\u202e"


class Outline(HTMLParser):
    """Reads a document strictly: every tag closed in order; remembers elements, text and attributes."""

    def __init__(self, html: str):
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == [], f"never closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        assert len(dict(attrs)) == len(attrs), f"an attribute twice in <{tag}>"
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, f"</{tag}> inside {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("script", "style"):
            self.words.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]

    @property
    def text(self) -> str:
        return " ".join("".join(self.words).split())


def image(colour: str = "red", size: tuple[int, int] = (16, 12), form: str = "JPEG") -> bytes:
    out = BytesIO()
    Image.new("RGB", size, colour).save(out, form)
    return out.getvalue()


def a_clip(n: int = 0, cider: float = 1.0, **changes: Any) -> Clip:
    clip = Clip(
        video_id=f"vid{n}",
        split="test",
        caption="a red circle",
        log_prob=-3.25,
        references=["a red disc", "the circle is red", "red", "one more"],
        scores={"BLEU-4": 0.5, "CIDEr": cider},
        frames=[image("red"), image("blue", form="WEBP")],
        frame_times=[0.0, 1.5],
        attention=(["a", "red", "circle", "<eos>"], [[0.5, 0.5], [0.9, 0.1], [0.2, 0.8], [0.5, 0.5]]),
        words=[("red", 0.97), ("circle", 0.5)],
    )
    return replace(clip, **changes)


def a_page(**changes: Any) -> ReportPage:
    page = ReportPage(
        title="Demo",
        recipe_name="demo",
        about="A first try.",
        made_at="2026-01-02T03:04:05+00:00",
        facts=[("Data set", "demo world")],
        warnings=["features come from random weights"],
        scores=[Score("CIDEr", 1.25, True, "40 test clips"), Score("Perplexity", math.nan, False)],
        curves=[Curve("Loss", "step", "loss", {"train": [(0, 3.0), (1, 2.0)], "val": [(1, 2.5)]})],
        clips=[a_clip(n, cider=n / 2) for n in range(3)],
        problems=[("broken", "truncated", "ends in the middle of a frame", "videos/broken.mp4")],
        stages=[
            StageLine("seed", "ran", 75.0, 1200, "abcdef0123456789", "2026-01-02T03:00:00Z"),
            StageLine("caption", "reused", 12.0, None, ""),
        ],
        recipe_yaml="dataset:\n  kind: demo\n",
        published=[Published("SA-LSTM", {"CIDEr": 51.7, "METEOR": 29.0}, "table 2")],
    )
    return replace(page, **changes)


EMPTY = ReportPage(title="", recipe_name="", about="", made_at="")


def test_the_page_is_well_formed_and_says_what_it_was_given():
    outline = Outline(render_report(a_page()))
    told = ["A first try.", "features come from random weights", "demo world", "kind: demo", "2026-01-02 03:04 UTC"]
    told += ["1.25", "40 test clips", "lower is better", "51.7", "1 min 15 s", "1,200"]
    told += ["a red circle", "the circle is red", "97 %", "ends in the middle of a frame"]
    assert [words for words in told if words not in outline.text] == []


def test_everything_may_be_empty():
    outline = Outline(render_report(EMPTY))
    assert "No clips were captioned." in outline.text
    bare = Clip(video_id="v", split="", caption="")
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
    )
    twins = DuplicateClips(clip, clip, 0.5, "mixed up")
    near = NearDuplicates(EVIL, EVIL, 0.0, (EVIL,), (EVIL,))
    spoken = a_clip(caption=f"<b>{EVIL}".replace(" ", ""), attention=([f"<b>{EVIL}".replace(" ", "")], [[1.0]]))
    page = ReportPage(
        title=EVIL,
        recipe_name=EVIL,
        about=EVIL,
        made_at=EVIL,
        story=[EVIL],
        facts=[(EVIL, EVIL)],
        alarms=[EVIL],
        warnings=[EVIL],
        not_shown=[EVIL],
        twins=[twins],
        training_duplicates=[(EVIL, near)],
        scores=[Score(EVIL, 1.0, True, EVIL, (0.5, 1.5)), Score("CIDEr", 1.0)],
        masking=Curve(EVIL, EVIL, EVIL, {EVIL: [(0, 1.0), (1, 2.0)]}),
        curves=[Curve(EVIL, EVIL, EVIL, {EVIL: [(0, 1.0), (1, 2.0)]})],
        clips=[clip] * (CLIPS_A_PAGE + 2) + [spoken],
        problems=[(EVIL, EVIL, EVIL, EVIL)] * (PROBLEMS_SHOWN + 1),
        stages=[StageLine(EVIL, EVIL, 1.0, 1, EVIL, EVIL, EVIL)],
        recipe_yaml=EVIL,
        published=[Published(EVIL, {EVIL: 1.0, "CIDEr": 2.0}, EVIL)],
        published_note=EVIL,
    )
    html = render_report(page)
    check_escaped(html, blocks=3)
    assert Outline(html).text.count("alert(1)") > 100  # it is all there to be read


def check_escaped(html: str, blocks: int) -> None:
    """One script that runs and `blocks` of data, whose text is as free of foreign markup as the document."""
    outline = Outline(html)
    data = re.findall(SCRIPTS + r"[^>]*>(.*?)</script>", html, re.DOTALL)
    assert [script.get("type") for script in outline.all("script")] == [None] + ["text/template"] * blocks
    assert html.count("<script") == html.count("</script") == 1 + blocks == 1 + len(data)
    for part in (outline, *map(Outline, data)):
        assert all(str(found["src"]).startswith("data:image/") for found in part.all("img"))
        assert not [name for _, attributes in part.tags for name in attributes if name.startswith("on")]
        assert "alert(1)" in part.text
    assert "<!--" not in "".join(data)  # it would let a data block go on past its end


def test_only_the_reports_own_script_may_run_and_nothing_may_be_loaded():
    html = render_report(a_page())
    script = re.search(r"<script>(.*?)</script>", html, re.DOTALL)
    assert script is not None
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    policy = next(meta["content"] for meta in Outline(html).all("meta") if "http-equiv" in meta)
    assert f"script-src 'sha256-{digest}'" in str(policy)
    assert "default-src 'none'" in str(policy)


def test_no_reference_leaves_the_file():
    html = render_report(a_page())
    for tag, attributes in Outline(html).tags:
        for name in ("src", "href", "srcset", "action", "data", "poster", "xlink:href"):
            target = attributes.get(name)
            assert target is None or target.startswith(("data:image/", "#")), (tag, name, target)
    assert "url(" not in html
    assert "@import" not in html
    assert not re.search(r"https?://", html)


def test_same_page_same_text_and_input_order_does_not_matter():
    assert render_report(a_page()) == render_report(a_page())
    clips = [a_clip(n, cider=n / 2) for n in range(5)]
    assert render_report(a_page(clips=clips)) == render_report(a_page(clips=clips[::-1]))


def test_clips_nearest_to_the_median_come_first_and_unscored_ones_last():
    values = {0: 0.0, 1: 9.0, 2: 1.0, 10: 1.0, 3: math.nan}
    page = a_page(clips=[a_clip(n, cider=value) for n, value in values.items()])
    clips = [card for card in Outline(render_report(page)).all("article") if card["class"] == "clip"]
    assert [clip["data-id"] for clip in clips] == ["vid2", "vid10", "vid0", "vid1", "vid3"]
    assert "data-rank" not in clips[-1]


def test_a_score_where_lower_is_better_turns_best_and_worst_around():
    clips = [a_clip(scores={"WER": 0.1})]
    lower = a_page(clips=clips, scores=[Score("WER", 0.1, higher_is_better=False)])
    orders = [element.get("value") for element in Outline(render_report(lower)).all("input")]
    assert orders == [None, "place asc", "rank asc", "rank desc", "id asc"]  # most ordinary, best, worst, by id
    higher = [element.get("value") for element in Outline(render_report(a_page())).all("input")]
    assert higher == [None, "place asc", "rank desc", "rank asc", "id asc"]


def test_only_the_first_page_of_clips_is_laid_out():
    total = CLIPS_A_PAGE + 7
    html = render_report(a_page(clips=[a_clip(n) for n in range(total)]))
    gallery, waiting = html.split('<div id="waiting"')
    assert gallery.count('<article class="clip"') == CLIPS_A_PAGE
    assert waiting.count('<article class="clip"') == waiting.count(SCRIPTS) == 7
    assert len([clip for clip in Outline(html).all("article") if clip["class"] == "clip"]) == CLIPS_A_PAGE
    assert "The other 7 clips" in html


def test_a_closing_token_is_left_out_and_words_that_differ_from_the_caption_stand_apart():
    follows = Outline(render_report(a_page(clips=[a_clip()])))
    assert [span["data-w"] for span in follows.all("span") if "data-w" in span] == ["500 500", "900 100", "200 800"]
    assert "<eos>" not in follows.text
    differs = Outline(render_report(a_page(clips=[a_clip(caption="A red circle.")])))
    assert "A red circle." in differs.text
    assert "<eos>" in differs.text


def test_attention_bars_show_the_mean_relative_to_the_tallest_weight():
    clip = a_clip(caption="x y", attention=(["x", "y"], [[0.8, 0.2, 0.0], [0.4, math.nan, 0.6]]))
    html = render_report(a_page(clips=[clip]))
    bars = html.split('class="bars"')[1].split("</div>")[0]
    assert re.findall(r"--h:([\d.]+)", bars) == ["0.750", "0.125", "0.375"]
    assert "data-timeline" in html.split("</script>", 1)[1]
    rows = a_page(clips=[replace(clip, timeline=False)])  # rows of several features, one after the other: no timeline
    assert "data-timeline" not in render_report(rows).split("</script>", 1)[1]


def test_frames_carry_their_format_size_and_time():
    images = Outline(render_report(a_page(clips=[a_clip()]))).all("img")
    assert [str(found["src"])[:15] for found in images] == ["data:image/jpeg", "data:image/webp"]
    assert base64.b64decode(str(images[0]["src"]).split(",")[1]) == image("red")
    assert (images[0]["width"], images[0]["height"], images[1]["alt"]) == ("16", "12", "frame 2 at 1.5 s")


def test_a_frame_that_is_no_image_is_named():
    with pytest.raises(BadInput, match=r"frame 1 of clip 'vid0'"):
        render_report(a_page(clips=[a_clip(frames=[image(), b"not an image"])]))


def test_a_name_that_is_not_unicode_can_be_written_to_a_file():
    written = render_report(a_page(problems=[("caf\udce9.mp4", "not_media", "no", "")])).encode("utf-8")
    assert b"caf" in written and b".mp4" in written


def test_a_word_carries_its_regions_on_the_frame_nearest_in_time():
    seen = [[Region(1.4, (0.25, 0.5, 0.75, 1.0), 0.6)], [], [Region(0.2, (0.5, 0.5, 0.5, 1.0), 0.9)]]
    spans = Outline(render_report(a_page(clips=[a_clip(regions=seen)]))).all("span")
    assert [span.get("data-r") for span in spans if "data-w" in span] == ["1 25 50 50 50 60", None, None]


def test_the_key_frame_is_marked_in_words_too():
    html = render_report(a_page(clips=[a_clip(key_time=1.2)]))
    assert [image["alt"] for image in Outline(html).all("img")] == [
        "frame 1 at 0.0 s",
        "frame 2 at 1.5 s, the key frame",
    ]
    assert "◆ 1.5 s" in Outline(html).text and "◆ is the key frame" in Outline(html).text


def test_random_weights_are_said_before_anything_else():
    html = render_report(a_page(alarms=["all weights are random"]))
    text = Outline(html).text
    assert text.index("Random weights all weights are random") < text.index("A first try.") < text.index("Scores CIDEr")


def test_scores_stand_with_their_intervals_beside_the_papers():
    score = Score("CIDEr", 48.25, interval=(45.5, 51.0))
    page = a_page(scores=[score], published=[Published("GL-RG", {"CIDEr": 60.6, "METEOR": 31.2}, "GL-RG")])
    html = render_report(page)
    assert "48.2 95 % interval 45.5 to 51.0" in Outline(html).text
    assert '<td class="figure">60.6</td><td class="figure">31.2</td><td>GL-RG</td>' in html
    place = re.search(r'class="scale"[^>]*--a:([\d.]+);--b:([\d.]+);--v:([\d.]+)', render_report(page))
    assert place is not None
    assert [float(x) for x in place.groups()] == pytest.approx([0.455, 0.51, 0.4825], abs=1e-4)  # of a line to 100


def test_best_ordinary_and_worst_are_shown_where_there_are_enough_clips():
    few = render_report(a_page(clips=[a_clip(n, cider=n) for n in range(8)]))
    assert "Most ordinary" not in Outline(few).text
    text = Outline(render_report(a_page(clips=[a_clip(n, cider=n) for n in range(9)]))).text
    best, ordinary, worst = (text.index(title) for title in ("Best a red", "Most ordinary a red", "Worst a red"))
    assert best < text.index("vid8 · CIDEr 8.0") < ordinary < text.index("vid4 · CIDEr 4.0") < worst
    assert worst < text.index("vid0 · CIDEr 0.0")


def test_stages_tell_what_was_done_and_what_was_found_done():
    text = Outline(render_report(a_page())).text
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
    cases: list[dict[str, list[tuple[float, float]]]] = [
        {},
        {"s": []},
        {"s": [(0, math.nan)]},
        {"s": [(math.nan, 1.0)]},
    ]
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
