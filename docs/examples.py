"""`make docs`: runs the examples of README.md and docs/*.md and writes what they print below them.

What a block is stands behind its opening backticks, where GitHub shows it to nobody:

    console             commands after `$ `, run one after the other in a prepared folder that the page has to itself; what
                        stands below a command becomes what it prints (nothing below: not shown). A line `...` keeps as many
                        lines before and after it as stand there. Progress lines are left out
    console exit=3      its last command ends with this exit code
    console quick       needs no trained run: the tests run it every time
    console clips       needs real clips: make docs CLIPS=/path/to/fight-detection-surv-dataset
    python              run as it stands (quick and clips as above)
    yaml                a recipe, a part of one, or a sweep: loaded by the tests
    text, csv           nothing to run
    ... not run: WHY    left as it is

Text that differs from what a command prints in times, sizes and ids of runs only is kept: a second run changes nothing."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import imageio_ffmpeg
import numpy as np

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
KINDS = ("console", "python", "yaml", "text", "csv")
MARKS = re.compile(r"quick|clips|exit=\d+")

_FENCE = re.compile(r"^```(\w*) ?(.*)\n((?:.*\n)*?)```$", re.MULTILINE)
_COMMAND = re.compile(r"^\$ ((?:.*\\\n)*.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)
_PROGRESS = re.compile(r"  \S.*: [\d,]+ of [\d,]+ \w+, .*/s")
_VARIES = re.compile(
    r"\d{8}-\d{6}-\d{6}-[0-9a-f]{6}|\d{4}-\d\d-\d\d[ T][\d:+]+|\b[0-9a-f]{6}\b|\d+ min( \d+ s)?|[\d.]+ (s|ms|h|MB|kB|GB)\b|[ ─━]+"
)


@dataclass(frozen=True)
class Block:
    """A block of code of a page."""

    page: str
    line: int
    kind: str
    marks: tuple[str, ...]
    reason: str
    """why it is not run; empty if it is"""
    text: str

    @property
    def exit_code(self) -> int:
        return next((int(mark.removeprefix("exit=")) for mark in self.marks if mark.startswith("exit=")), 0)

    @property
    def commands(self) -> list[tuple[str, str]]:
        """Each command with the output shown below it."""
        return _COMMAND.findall(self.text)


def blocks_of(page: Path) -> Iterator[Block]:
    text = page.read_text()
    return (_block(page.name, text, found) for found in _FENCE.finditer(text))


def _block(page: str, text: str, found: re.Match[str]) -> Block:
    marks, _, reason = found[2].partition("not run:")
    return Block(page, text.count("\n", 0, found.start()) + 1, found[1], tuple(marks.split()), reason.strip(), found[3])


def rewritten(page: Path, world: Path, only: str = "") -> str:
    """The page with what its blocks print in the folder `world` now: of all that are run, or of those marked `only`."""
    text = page.read_text()
    recorded = json.loads((world / ".recorded.json").read_text()) if (world / ".recorded.json").exists() else {}

    def rerun(found: re.Match[str]) -> str:
        block = _block(page.name, text, found)
        left = block.reason or block.kind not in ("console", "python") or (only and only not in block.marks)
        if left or ("clips" in block.marks and not (world / "surveillance").exists()):
            return found[0]
        if block.kind == "python":
            run([sys.executable, "-c", block.text], world, block)
            return found[0]
        shown = "".join(_command(block, n, world, recorded) for n in range(len(block.commands)))
        return f"{found[0].partition(chr(10))[0]}\n{shown}```"

    return _FENCE.sub(rerun, text)


def _command(block: Block, n: int, world: Path, recorded: dict[str, str]) -> str:
    """A command and what it prints, laid out as what stood there."""
    command, old = block.commands[n]
    code = block.exit_code if n == len(block.commands) - 1 else 0
    printed = run(["bash", "-c", command], world, block, code)
    output = recorded.pop(command, printed)  # what it printed when there was something to do
    shown = old.rstrip("\n").split("\n") if old.strip() else []
    new = _elided(output.rstrip("\n").split("\n"), shown) if shown else []
    kept = shown if [normal(line) for line in new] == [normal(line) for line in shown] else new
    blank = old[len(old.rstrip("\n")) :][1:] if shown else old
    return f"$ {command}\n" + "".join(f"{line}\n" for line in kept) + blank


def _elided(new: list[str], shown: list[str]) -> list[str]:
    if "..." not in shown:
        return new
    head = shown.index("...")
    tail = len(shown) - head - 1
    return new if len(new) <= head + tail else [*new[:head], "...", *new[len(new) - tail :]]


def normal(line: str) -> str:
    """A line without what differs from run to run."""
    return _VARIES.sub("~", line)


def run(command: list[str], world: Path, block: Block | None = None, code: int = 0) -> str:
    """What a command prints in the folder `world`, on a terminal of 80 columns."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "AWS_", "LONGTAKE_", "MAKE"))}
    path = f"{Path(sys.executable).parent}{os.pathsep}{ours['PATH']}"
    ours |= {"PATH": path, "PREFECT_HOME": str(world / ".prefect"), "COLUMNS": "80", "PYTHONUNBUFFERED": "1"}
    done = subprocess.run(command, cwd=world, env=ours, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != code:
        where = f"{block.page}, line {block.line}" if block else "preparing"
        raise SystemExit(f"{where}: {command[-1]}\nended with {done.returncode}, not {code}:\n{done.stdout}")
    lines = done.stdout.replace(f"{world}/", "").replace(str(world), ".").split("\n")
    return "\n".join(line.rstrip() for line in lines if not _PROGRESS.match(line))


def prepare(world: Path, demo: bool = True) -> None:
    """The folder that the examples run in: what they import and score, and a finished demo."""
    world.mkdir(parents=True)
    for name in ("Makefile", "pyproject.toml"):
        (world / name).symlink_to(ROOT / name)
    (world / ".venv").symlink_to(sys.prefix)
    _write_msvd(world)
    _write_captions(world)
    if demo:
        _record(world, "make demo")
        _copy_drawn_clips(world)


def add_clips(world: Path, clips: Path) -> None:
    """The tutorial's folders of real clips, and a captioner trained on them."""
    (world / "surveillance").symlink_to(clips.resolve())
    for block in blocks_of(ROOT / "docs" / "tutorial.md"):
        if block.kind == "python":
            run([sys.executable, "-c", block.text], world, block)
    _record(world, "longtake run folder --data my-videos")


def _record(world: Path, command: str) -> None:
    """Runs a command of minutes, and keeps what it printed for the first time that a page shows it; there it finds all done."""
    recorded = world / ".recorded.json"
    others = json.loads(recorded.read_text()) if recorded.exists() else {}
    recorded.write_text(json.dumps(others | {command: run(["bash", "-c", command], world)}))


def _write_msvd(world: Path) -> None:
    """A stand-in of MSVD's size: its file names and numbers of videos, one caption each, features drawn at random."""
    (world / "MSVD").mkdir()
    for split, first, last in (("train", 1, 1200), ("val", 1201, 1300), ("test", 1301, 1970)):
        lines = "".join(f"vid{n}\ta man is riding a horse\n" for n in range(first, last + 1))
        (world / "MSVD" / f"sents_{split}_lc_nopunc.txt").write_text(lines)
    (world / "ids.txt").write_text("".join(f"vid{n}\n" for n in range(1, 1971)))
    np.save(world / "vgg16.npy", np.random.default_rng(0).random((1970, 16, 512), dtype=np.float32).astype(np.float16))


def _write_captions(world: Path) -> None:
    """Two captioners' sentences on 32 images, in COCO's format: one says where it is, one does not."""
    acts = (
        "a dog runs",
        "children play",
        "a man rides a horse",
        "a cat sleeps",
        "a boy plays the guitar",
        "a bird sits",
        "cars drive",
    )
    scenes = [
        (act, where) for act in (*acts, "a woman sings") for where in ("on the beach", "in a park", "in the rain", "at night")
    ]
    truth = [(f"{act} {where}", f"{where} {act}") for act, where in scenes]
    notes = [{"image_id": n, "id": 2 * n + k, "caption": text} for n, pair in enumerate(truth) for k, text in enumerate(pair)]
    (world / "annotations.json").write_text(json.dumps({"images": [{"id": n} for n in range(len(truth))], "annotations": notes}))
    said = {
        "results.json": [f"{act} somewhere {where}" for act, where in scenes],
        "other.json": [f"there {act}" for act, _ in scenes],
    }
    for name, sentences in said.items():
        (world / name).write_text(json.dumps([{"image_id": n, "caption": text} for n, text in enumerate(sentences)]))


def _copy_drawn_clips(world: Path) -> None:
    """Four test clips of the demo and a broken one in clips/, and ten joined to film.mp4."""
    drawn = sorted(world.glob("longtake-workspace/data/demo-*/videos/test-*.mp4"))
    (world / "clips").mkdir()
    for clip in drawn[:4]:
        shutil.copy2(clip, world / "clips")
    (world / "clips" / "broken.mp4").write_bytes(drawn[4].read_bytes()[:12_000])
    (world / "film.txt").write_text("".join(f"file '{clip}'\n" for clip in drawn[10:20]))
    ffmpeg = [
        imageio_ffmpeg.get_ffmpeg_exe(),
        "-v",
        "error",
        "-f",
        "concat",
        "-safe",
        "0",
        "-i",
        "film.txt",
        "-c",
        "copy",
        "film.mp4",
    ]
    run(ffmpeg, world)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", type=Path, default=PAGES, help="all by default")
    parser.add_argument("--keep", type=Path, help="keep the finished demo in this folder, and use it again")
    parser.add_argument("--clips", type=Path, help="a clone of github.com/seymanurakti/fight-detection-surv-dataset")
    given = parser.parse_args()
    with TemporaryDirectory() as temporary:
        for page in given.pages:
            world = world_for(given.keep or Path(temporary), given.clips)
            text = rewritten(page, world)
            print(f"{page}: {'changed' if text != page.read_text() else 'as it was'}", flush=True)
            page.write_text(text)
        if not (world / "surveillance").exists():
            print("blocks that need real clips were left as they are: make docs CLIPS=/path/to/fight-detection-surv-dataset")


def world_for(keep: Path, clips: Path | None) -> Path:
    """A new copy of the prepared folder, always at the same place: what one page does, another does not see."""
    world, prepared = keep.resolve() / "world", keep.resolve() / "prepared"
    shutil.rmtree(world, ignore_errors=True)
    if not prepared.exists():
        prepare(world)
        world.rename(prepared)
    if clips and not (prepared / "surveillance").exists():
        prepared.rename(world)
        add_clips(world, clips)
        world.rename(prepared)
    shutil.copytree(prepared, world, symlinks=True)
    return world


if __name__ == "__main__":
    main()
