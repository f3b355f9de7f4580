"""The examples of README.md and docs/: every block is run, or says why it is not."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from docs import examples
from docs.examples import KINDS, MARKS, PAGES, Block, blocks_of, rewritten
from flows.recipe import Recipe, check_recipe
from flows.sweep.definition import SweepFile, read_sweep

BLOCKS = [block for page in PAGES for block in blocks_of(page)]
PART_OF = {
    "name": "mine",
    "dataset": {"kind": "folder"},
    "sampling": {"frames": {"kind": "uniform"}, "clips": {"kind": "clips", "positions": 4}},
    "features": {"scene": {"kind": "backbone", "net": "tf_efficientnet_lite2", "sampling": "frames"}},
}
"""what a recipe needs beside the part that a page shows"""


def unclear(block: Block) -> bool:
    """Whether nobody can say how to check this block."""
    shell = block.kind == "console" and not (block.text.startswith("$ ") and block.commands)
    return block.kind not in KINDS or not all(MARKS.fullmatch(mark) for mark in block.marks) or shell


def place(block: Block) -> str:
    return f"{block.page}:{block.line}"


def test_every_block_is_of_a_kind_that_is_checked_or_says_why_it_is_not() -> None:
    assert [place(block) for block in BLOCKS if unclear(block)] == []
    assert sum(page.read_text().count("\n```") for page in PAGES) == 2 * len(BLOCKS)


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.kind == "yaml" and not b.reason], ids=place)
def test_yaml_is_a_recipe_a_part_of_one_or_a_sweep(block: Block, tmp_path: Path) -> None:
    values = yaml.safe_load(block.text)
    if "variants" in values:
        (tmp_path / "sweep.yaml").write_text(block.text)
        assert isinstance(read_sweep(tmp_path / "sweep.yaml"), SweepFile)
    else:
        assert isinstance(check_recipe(PART_OF | values, place(block)), Recipe)


@pytest.fixture
def bare_world(tmp_path: Path) -> Path:
    """What examples need that were marked as quick: no demo, no clips."""
    examples.prepare(tmp_path / "world", demo=False)
    return tmp_path / "world"


def pages_with_quick_examples() -> list[Any]:
    pages = sorted({block.page for block in BLOCKS if "quick" in block.marks})
    return [pytest.param(page, marks=[] if page == "README.md" else pytest.mark.slow) for page in pages]


@pytest.mark.parametrize("page", pages_with_quick_examples())
def test_quick_examples_print_what_the_page_shows(page: str, bare_world: Path) -> None:
    (path,) = [one for one in PAGES if one.name == page]
    assert rewritten(path, bare_world, only="quick") == path.read_text()


@pytest.mark.slow
def test_every_example_prints_what_the_page_shows(tmp_path: Path) -> None:
    """Scores and captions are those of one kind of processor: elsewhere `make docs` and a look at the difference tell."""
    clips = Path(os.environ["CLIPS"]) if "CLIPS" in os.environ else None
    stale = [page.name for page in PAGES if rewritten(page, examples.world_for(tmp_path, clips)) != page.read_text()]
    assert stale == []


PAGE = """```console{marks}
$ echo one; echo 'took 3.2 s'; echo three; exit {code}
{shown}
$ touch here
```
"""


def rerun(folder: Path, shown: str, marks: str = "", code: int = 0) -> str:
    """What becomes of the lines shown below a command that prints one, took 3.2 s, three."""
    page = folder / "page.md"
    page.write_text(PAGE.format(marks=marks, shown=shown, code=code))
    text = rewritten(page, folder)
    start, end = PAGE.format(marks=marks, shown="|", code=code).split("|")
    assert text.startswith(start) and text.endswith(end)
    return text[len(start) : -len(end)]


def test_stale_output_is_replaced_and_a_time_is_not(tmp_path: Path) -> None:
    assert rerun(tmp_path, "stale") == "one\ntook 3.2 s\nthree"
    assert (tmp_path / "here").exists()
    assert rerun(tmp_path, "one\ntook 41 s\nthree") == "one\ntook 41 s\nthree"


def test_an_ellipsis_stays_with_as_many_lines_around_it(tmp_path: Path) -> None:
    assert rerun(tmp_path, "stale\n...") == "one\n..."
    assert rerun(tmp_path, "...\nstale") == "...\nthree"


def test_a_block_that_is_not_run_is_left_and_a_failure_is_told(tmp_path: Path) -> None:
    assert rerun(tmp_path, "stale", marks=" not run: needs a GPU") == "stale"
    with pytest.raises(SystemExit, match=r"page\.md, line 1: .*\nended with 2, not 0"):
        rerun(tmp_path, "stale", code=2)
