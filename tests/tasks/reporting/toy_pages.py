"""Pages filled with toys, and a strict reader of the HTML that they become."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from io import BytesIO
from typing import Any

from PIL import Image

from tasks.reporting.pages import (
    ComparedClip,
    ComparisonPage,
    Curve,
    ReportClip,
    ReportPage,
    RunCaption,
    RunColumn,
    RunDifference,
    Score,
    ScoreDifference,
    StageLine,
)
from tasks.reporting.published_scores import PublishedScores

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


def a_clip(n: int = 0, cider: float = 1.0, **changes: Any) -> ReportClip:
    clip = ReportClip(
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
        classes={"i3d": [("applauding", 0.62), ("marching", 0.12)]},
    )
    return replace(clip, **changes)


def a_report(**changes: Any) -> ReportPage:
    page = ReportPage(
        title="Demo",
        recipe_name="demo",
        about="A first try.",
        made_at="2026-01-02T03:04:05+00:00",
        metadata=[("Data set", "demo world")],
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
        published=[PublishedScores("SA-LSTM", {"CIDEr": 51.7, "METEOR": 29.0}, "table 2")],
    )
    return replace(page, **changes)


EMPTY = ReportPage(title="", recipe_name="", about="", made_at="")


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


def a_run(label: str, cider: float, **changes: Any) -> RunColumn:
    scores = {"CIDEr": Score("CIDEr", cider, interval=(cider - 5, cider + 5))}
    run = RunColumn(label, f"demo-{label}", f"run-{label}", "2026-01-02T03:04:05Z", "an LSTM", "60 test videos", scores)
    return replace(run, **changes)


def a_compared_clip(n: int, **changes: Any) -> ComparedClip:
    captions = [RunCaption("A", "a red circle", 80.0), RunCaption("B", "a red disc rolls", 120.0, best=True)]
    return replace(ComparedClip(f"v{n}", "test", captions, ["red"], [image()], [0.5], 40.0 + n, 40.0 + n), **changes)


def a_comparison(**changes: Any) -> ComparisonPage:
    page = ComparisonPage(
        title="A · B",
        runs=[a_run("A", 50.0), a_run("B", 60.0)],
        differences=[RunDifference("B", "A", [ScoreDifference("CIDEr", 10.0, 2.5, 17.0, 0.004)])],
        settings=[("decoding.width", ["1", "5"]), ("boosting.epochs", [None, "70"])],
        curves=[Curve("Seeding: loss", "epoch", "loss", {"A demo": [(1, 2.0)], "B demo": [(1, 1.5)]})],
        clips=[a_compared_clip(0)],
    )
    return replace(page, **changes)
