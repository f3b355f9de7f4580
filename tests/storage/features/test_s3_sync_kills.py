"""Pushes, pulls and writers that are killed -9, against a real S3 server: the next one goes on, and nothing is half there."""

from __future__ import annotations

import random
import shutil
import signal
import time
from pathlib import Path

import pytest

from storage.features import segments as segments_module
from storage.features.segments import segment_names
from storage.features.store import FeatureStore
from tests.storage.features.feature_mirrors import mirror, remote_segments, start
from tests.storage.features.feature_rows import D, all_right, make


def kill_often(action: str, url: str, local: Path, times: int, chance: random.Random, longest: float) -> int:
    """Start the process and kill it, so many times -> how often it was killed in the middle."""
    killed = 0
    for _ in range(times):
        with start(action, url, local) as process:
            time.sleep(chance.uniform(0, longest))
            process.send_signal(signal.SIGKILL)
            killed += process.wait() == -signal.SIGKILL
    return killed


def check_kills(tmp_path: Path, url: str, times: int) -> None:
    store = make(tmp_path / "a", key="other")
    for first in range(0, 60, 6):  # ten segments of several chunks each
        make(tmp_path / "a", *range(first, first + 6))
    digest = store.digest()
    assert kill_often("push", url, store.path, times, random.Random(1), 0.3) > 0
    copy = tmp_path / "half"
    if mirror(url, copy).pull().segments:
        assert all_right(FeatureStore.open(copy).view())
    mirror(url, store).push()
    assert store.digest() == digest and remote_segments(url) == segment_names(store.path)
    local = tmp_path / "b"
    assert kill_often("pull", url, local, times, random.Random(2), 0.3) > 0
    assert not (local / "zarr.json").exists() or FeatureStore.open(local).verify() == []
    mirror(url, local).pull()
    pulled = FeatureStore.open(local)
    assert pulled.digest() == digest and pulled.verify() == []
    assert not list(local.glob(".pull-*")) and not list(local.glob(".dead-*"))


def test_killed_pushes_and_pulls_are_taken_up_again(tmp_path, url, monkeypatch):
    monkeypatch.setattr(segments_module, "CHUNK_BYTES", 3 * D * 2)
    check_kills(tmp_path, url, 2)


@pytest.mark.service
def test_many_kills_of_pushes_and_pulls(tmp_path, url, monkeypatch):
    monkeypatch.setattr(segments_module, "CHUNK_BYTES", 3 * D * 2)
    check_kills(tmp_path, url, 12)


@pytest.mark.service
def test_a_lost_machine_costs_only_what_it_had_not_sent(tmp_path, url):
    """A writer that sends as it goes is killed; its disk is gone; another machine goes on from what was sent."""
    killed, chance = 0, random.Random(5)
    for n in range(6):
        with start("write", url, tmp_path / f"machine{n}") as process:
            time.sleep(chance.uniform(0.1, 1.0))
            process.send_signal(signal.SIGKILL)
            killed += process.wait() == -signal.SIGKILL
        shutil.rmtree(tmp_path / f"machine{n}")
    with start("write", url, tmp_path / "last") as process:
        assert process.wait() == 0
    assert killed > 0
    mirror(url, tmp_path / "copy").pull()
    for path in ("last", "copy"):
        store = FeatureStore.open(tmp_path / path)
        assert store.digest() == make(tmp_path / "alone", *range(100)).digest() and store.verify() == []
