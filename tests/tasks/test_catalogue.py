"""The catalogue stage alone: what it writes, what it sets aside, what changes its key."""

from __future__ import annotations

import os
import shutil
import signal
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from storage.catalogue import Catalogue
from storage.datasets import FolderOptions
from storage.errors import BadMedia
from storage.media.decode_pool import DecodePool
from storage.media.probe import Probe, probe
from tasks import catalogue as module
from tasks.catalogue import catalogue
from tests.conftest import TINY_WORLD


@pytest.fixture
def folder(world: Path, tmp_path: Path) -> Path:
    """A copy of the world that a test may spoil."""
    return Path(shutil.copytree(world, tmp_path / "folder"))


def read(alone, options, root: Path) -> Catalogue:
    job = alone(catalogue, options, root)
    return Catalogue(job.folder, root)


def test_every_clip_of_the_world_is_usable_and_in_its_split(alone, world: Path) -> None:
    found = read(alone, TINY_WORLD, world)
    assert Counter(record.split for record in found.records.values()) == {"train": 10, "val": 4, "test": 4}
    assert len(found.usable_keys) == 18
    assert found.captions.num_rows == 18 * 4
    assert found.problems == []


def test_broken_files_are_quarantined_with_a_reason_and_the_rest_goes_on(alone, folder: Path) -> None:
    clips = sorted((folder / "videos").glob("*.mp4"))
    clips[0].write_bytes(b"")
    clips[1].write_text("this is not a video")
    clips[2].write_bytes(clips[2].read_bytes()[:3000])
    found = read(alone, TINY_WORLD, folder)
    bad = {problem.item: problem for problem in found.problems if problem.quarantined}
    assert set(bad) == {clip.stem for clip in clips[:3]}
    assert all(len(problem.reason) > 20 for problem in bad.values())
    assert bad[clips[0].stem].kind == "empty"
    assert not any(str(folder) in problem.reason for problem in bad.values()), "equal bytes elsewhere share the reason"
    assert set(found.usable_keys) == {clip.stem for clip in clips[3:]}


def test_an_unsafe_id_is_listed_and_never_used(alone, folder: Path) -> None:
    with (folder / "captions.jsonl").open("a") as file:
        file.write('{"video": "../../etc/passwd", "caption": "a secret", "split": "train"}\n')
    found = read(alone, FolderOptions(), folder)
    assert any("etc/passwd" in problem.item and problem.quarantined for problem in found.problems)
    assert not any("passwd" in id for id in found.records)


def test_touching_a_file_keeps_the_key_and_replacing_it_changes_the_key(alone, folder: Path) -> None:
    before = alone(catalogue, TINY_WORLD, folder)
    clips = sorted((folder / "videos").glob("*.mp4"))
    os.utime(clips[0], (1, 1))
    assert alone(catalogue, TINY_WORLD, folder).ref.key == before.ref.key
    shutil.copy(clips[1], clips[0])
    assert alone(catalogue, TINY_WORLD, folder).ref.key != before.ref.key


def test_a_changed_test_video_leaves_the_training_parts_alone(alone, folder: Path) -> None:
    before = alone(catalogue, TINY_WORLD, folder)
    records = Catalogue(before.folder, folder).records
    test_clip = next(folder / record.source for record in records.values() if record.split == "test")
    other = next(clip for clip in sorted((folder / "videos").glob("*.mp4")) if clip != test_clip)
    shutil.copy(other, test_clip)
    after = alone(catalogue, TINY_WORLD, folder)
    assert after.ref.parts["videos/train"] == before.ref.parts["videos/train"]
    assert after.ref.parts["captions"] == before.ref.parts["captions"]
    assert after.ref.parts["videos/test"] != before.ref.parts["videos/test"]


def probe_or_die(path: Path) -> Probe:
    """One picture kills its process."""
    if path.stem == "p3":
        os.kill(os.getpid(), signal.SIGSEGV)
    return probe(path)


def probe_several_or_die(paths: tuple[Path, ...]) -> list[Probe]:
    return [probe_or_die(path) for path in paths]


def test_a_picture_that_kills_its_process_is_found_among_those_that_are_probed_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [tmp_path / f"p{n}.png" for n in range(20)]
    for n, path in enumerate(paths):
        Image.fromarray(np.full((8 + n, 9, 3), n, np.uint8)).save(path)
    monkeypatch.setattr(module, "probe", probe_or_die)
    monkeypatch.setattr(module, "probe_several", probe_several_or_die)
    with DecodePool(2, 30) as pool:
        found = list(module._probe_all(pool, paths))
    assert [answer.height for answer in found if isinstance(answer, Probe)] == [8 + n for n in range(20) if n != 3]
    assert isinstance(found[3], BadMedia) and found[3].kind == "crashed" and str(paths[3]) in found[3].reason
