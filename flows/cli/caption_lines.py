"""Captions of files as lines to be written, with the files named as people named them."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from storage.records import Problem
from storage.text.caption_writers import CaptionLine, ScoredCaption
from tasks.inference.user_files import Captioned


def lines_of(found: Captioned, n_best: int) -> list[CaptionLine]:
    return [
        CaptionLine(
            file=shown(clip.path),
            start=clip.segment[0],
            end=clip.segment[1],
            whole=clip.whole,
            caption=clip.caption.caption,
            log_prob=clip.caption.log_prob,
            n_best=tuple(ScoredCaption(row.caption, row.log_prob) for row in clip.best) if n_best > 1 else (),
        )
        for clip in found.clips
    ]


def shown_problems(problems: Sequence[Problem]) -> list[Problem]:
    shown_here = [replace(problem, item=shown(Path(problem.item))) for problem in problems]
    return sorted(shown_here, key=lambda problem: problem.item)


def shown(path: Path) -> str:
    """The path as one would write it here: relative to the current folder where it is below it."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
