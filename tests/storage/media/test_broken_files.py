"""Broken and hostile files, one by one: the words for each, little memory, little time, and nothing else is opened."""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest

from storage.errors import BadMedia
from storage.media.probe import probe
from storage.media.readers import PyavReader
from storage.media.seeking_reader import SeekingReader
from tests import ROOT
from tests.storage.broken_files import Broken, write_broken_files
from tests.storage.canaries import Canary, canary
from tests.storage.clips import make_clip, read_numbers
from tests.storage.decoding import decode

MEMORY = 3 * 2**30
"""Address space for a whole process: the interpreter, the codecs and one 8K picture need two thirds of it."""

# Looks at every file of a folder in one process and prints what came of it.
EXAMINE = """
import json, sys
from pathlib import Path
import numpy as np
from storage.errors import BadMedia
from storage.media.probe import probe
from tests.storage.decoding import decode
found = {}
for path in sorted(Path(sys.argv[1]).iterdir()):
    try:
        seen = probe(path)
        frames = decode(path, np.unique([0, seen.frames - 1]), seen)
        found[path.name] = ["", "", seen.damaged or frames.damaged, len(frames.pts)]
    except BadMedia as bad:
        found[path.name] = [bad.kind, bad.reason, False, 0]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def bird(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Canary]:
    secret = make_clip(tmp_path_factory.mktemp("elsewhere") / "secret.ts", 20)
    with canary(secret) as watched:
        yield watched


@pytest.fixture(scope="module")
def broken(bird: Canary, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Broken]]:
    folder = tmp_path_factory.mktemp("broken")
    return folder, write_broken_files(folder, bird)


def test_every_kind_is_told_in_words_within_bounds_and_opens_nothing_else(
    bird: Canary, broken: tuple[Path, dict[str, Broken]]
) -> None:
    folder, expected = broken
    assert len(expected) >= 50 and len({kind.kind for kind in expected.values()}) >= 9
    bird.touched()
    done = subprocess.run(
        [sys.executable, "-c", EXAMINE, str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY)),
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert found.keys() == expected.keys()
    for name, (kind, reason, damaged, frames) in found.items():
        wanted = expected[name]
        assert (kind, damaged) == (wanted.kind, wanted.damaged), (name, reason)
        if kind:
            assert wanted.words in reason and str(folder / name) in reason and reason.isprintable(), (name, reason)
            assert "; " in reason, f"{name}: the reason says what to do next"
        else:
            assert frames >= 1, name
    assert bird.touched() == []


def test_the_canary_notices(bird: Canary) -> None:
    bird.file.read_bytes()
    assert bird.touched() == ["the file was opened"]
    address = urlsplit(bird.url)
    socket.create_connection((address.hostname, address.port)).close()
    assert bird.touched() == ["the address was called"]
    assert bird.touched() == []


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
def test_a_file_that_may_not_be_read_says_so(tmp_path: Path) -> None:
    path = make_clip(tmp_path / "a.mp4", 3)
    path.chmod(0)
    with pytest.raises(BadMedia, match="cannot be read: Permission denied"):
        probe(path)


def _emptied(path: Path, bird: Canary) -> None:
    path.write_bytes(b"")


def _cut(path: Path, bird: Canary) -> None:
    os.truncate(path, path.stat().st_size // 3)


def _shorter(path: Path, bird: Canary) -> None:
    make_clip(path, 20)


def _playlist(path: Path, bird: Canary) -> None:
    path.write_text(f"#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXTINF:2,\n{bird.file}\n#EXTINF:2,\n{bird.url}\n")


def _removed(path: Path, bird: Canary) -> None:
    path.unlink()


@pytest.mark.parametrize("change", [_emptied, _cut, _shorter, _playlist, _removed])
@pytest.mark.parametrize("suffix", ["mp4", "mkv", "ts"])
def test_a_file_that_changes_after_it_was_probed(
    tmp_path: Path, bird: Canary, change: Callable[[Path, Canary], None], suffix: str
) -> None:
    """Frames that do not come are missed; they are never made up, and nothing else is opened."""
    for wanted in (np.arange(0, 80, 4), np.array([70, 79])):
        path = make_clip(tmp_path / f"a.{suffix}", 80, options={"g": "10", "bf": "2"})
        found = probe(path)
        change(path, bird)
        try:
            frames = decode(path, wanted, found)
        except BadMedia as bad:
            assert bad.kind in ("empty", "truncated", "unsafe", "missing", "undecodable", "not_media", "unreadable")
        else:
            assert frames.damaged and len(frames.pts) < len(wanted)
    assert bird.touched() == []


@pytest.mark.parametrize("suffix", ["mp4", "mkv", "ts"])
def test_a_file_that_is_cut_while_it_is_read(tmp_path: Path, suffix: str) -> None:
    path = make_clip(tmp_path / f"a.{suffix}", 250, size=(320, 192), options={"g": "10", "crf": "1"})
    found = probe(path)
    for reader in (PyavReader(path), SeekingReader(path, found.start + found.pts, np.array([2, 60, 249]))):
        frames = reader.frames()
        shown = [next(frames)[1]() for _ in range(3)]
        assert read_numbers(np.stack(shown)) == [0, 1, 2]
        kept = path.read_bytes()
        os.truncate(path, len(kept) // 10)
        assert sum(1 for _ in frames) <= 247
        path.write_bytes(kept)
