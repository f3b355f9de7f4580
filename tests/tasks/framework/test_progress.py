"""Progress: plain lines where nobody watches, a bar in a terminal, nothing of Prefect outside of it."""

from __future__ import annotations

import io
import sys

import pytest
from rich.console import Console

from tasks.framework import progress as module
from tasks.framework.progress import progress_bar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def every_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LINE_EVERY", 0.0)


def test_lines_tell_count_total_rate_and_postfix(every_line: None, capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("extracting features", 4, "videos") as bar:
        bar.advance(postfix="loss 2.31")
        bar.advance(2)
        bar.update_to(4)
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == "", "standard output is for results"
    assert [line.split(",")[0] for line in lines] == [f"  extracting features: {n} of 4 videos" for n in (1, 3, 4)]
    assert lines[0].endswith("loss 2.31") and lines[2].endswith("/s, 0 s left")
    assert bar.count == 4


def test_what_was_done_before_does_not_count_as_fast(
    every_line: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([0.0, 10.0])
    monkeypatch.setattr(module.time, "monotonic", lambda: next(clock))
    with progress_bar("seeding", 1000, "steps", done=900) as bar:
        bar.update_to(920, "loss 2.31")
    assert capsys.readouterr().err == "  seeding: 920 of 1000 steps, 2.0/s, 40 s left loss 2.31\n"


def test_lines_are_rare(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("probing videos", 1000, "files") as bar:
        for _ in range(1000):
            bar.advance()
    assert capsys.readouterr().err == "", "nothing that takes under ten seconds prints a line"


def test_a_label_in_brackets_is_printed_as_it_is(every_line: None, capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("sample_frames[clips]", 2, "videos") as bar:
        bar.advance(postfix="[best]")
    assert "sample_frames[clips]: 1 of 2 videos" in (err := capsys.readouterr().err) and "[best]" in err


@pytest.mark.parametrize(("total", "steps"), [(0, 0), (0, 3), (2, 5)])
def test_totals_that_are_wrong_do_no_harm(every_line: None, total: int, steps: int) -> None:
    with progress_bar("seeding", total, "steps") as bar:
        bar.update_to(0)
        bar.advance(steps)
    assert bar.count == steps


def test_a_failure_inside_passes_through(every_line: None) -> None:
    with pytest.raises(KeyboardInterrupt), progress_bar("seeding", 2, "steps"):
        raise KeyboardInterrupt


def test_a_terminal_gets_a_bar_that_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(module, "console", Console(file=screen, force_terminal=True, width=100))
    with progress_bar("sample_frames[clips]", 3, "videos") as bar:
        bar.advance(3, postfix="loss [0.5]")
    drawn = screen.getvalue()
    assert "3/3" in drawn and "videos" in drawn
    assert "sample_frames[clips]" in drawn and "loss [0.5]" in drawn
    assert drawn.rstrip().endswith(("\x1b[2K", "\x1b[?25h")), "the bar is wiped, the cursor is back"


def test_no_artifact_is_made_outside_of_a_prefect_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "prefect", raising=False)
    with progress_bar("seeding", 1, "steps") as bar:
        bar.advance()
    assert "prefect" not in sys.modules, "a stage alone does not even load Prefect"
