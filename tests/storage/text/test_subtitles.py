"""Subtitle files, read back by parsers that others wrote."""

from __future__ import annotations

from io import StringIO

import pytest

from storage.text.caption_writers import CaptionLine, clock, render_srt, render_vtt

CUES = [
    CaptionLine("a.mp4", 0.0, 2.5, False, "a man rides a horse", -1.0),
    CaptionLine("a.mp4", 2.5, 3661.0004, False, "a\n\nred  circle --> moves & <b>grows</b>", -1.0),
    CaptionLine("a.mp4", 3661.0004, 3661.0004, False, "no time at all", -1.0),
    CaptionLine("a.mp4", 3700, 3701, False, "  ", -1.0),
]


def test_srt_is_read_by_a_real_parser() -> None:
    srt = pytest.importorskip("srt")
    found = list(srt.parse(render_srt(CUES), ignore_errors=False))
    assert [cue.index for cue in found] == [1, 2, 3], "what says nothing is left out"
    assert [cue.content for cue in found][:2] == ["a man rides a horse", "a red circle --› moves & ‹b›grows‹/b›"]
    assert found[1].start.total_seconds() == 2.5 and found[1].end.total_seconds() == 3661.0
    assert all(cue.end > cue.start for cue in found)


def test_vtt_is_read_by_a_real_parser() -> None:
    webvtt = pytest.importorskip("webvtt")
    found = webvtt.from_buffer(StringIO(render_vtt(CUES))).captions
    assert len(found) == 3 and found[0].text == "a man rides a horse"
    assert found[0].start == "00:00:00.000" and found[1].end == "01:01:01.000"
    assert "&lt;b&gt;grows" in found[1].raw_text and "-->" not in found[1].raw_text


def test_no_cue_is_a_valid_file_too() -> None:
    assert render_srt([]) == "" and render_vtt([]) == "WEBVTT\n"


def test_clocks_are_short_and_never_round_up() -> None:
    assert [clock(s) for s in (0, 9.99, 75.25, 3600)] == ["0:00.0", "0:09.9", "1:15.2", "1:00:00.0"]
