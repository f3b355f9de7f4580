"""How many cores a process may use: affinity and control groups, as they are laid out in containers and outside."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from storage import machine
from tests import ROOT


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


@pytest.mark.parametrize(
    ("group", "files", "limit"),
    [
        ("/", {"": {"cpu__max": "150000 100000\n"}}, 1.5),
        ("/a/b", {"a": {"cpu__max": "50000 100000\n"}, "a/b": {"cpu__max": "max 100000\n"}}, 0.5),
        ("/a/b", {"a": {"cpu__max": "400000 100000\n"}, "a/b": {"cpu__max": "200000 100000\n"}}, 2.0),
        ("/a", {"a": {"cpu__max": "max 100000\n"}}, None),
        ("/of/the/host", {"": {"cpu__max": "300000 100000\n"}}, 3.0),
        ("/a", {}, None),
    ],
)
def test_the_least_limit_of_a_group_and_those_above_it_counts(
    tmp_path: Path, group: str, files: dict[str, dict[str, str]], limit: float | None
) -> None:
    for folder, values in files.items():
        write(tmp_path / folder, **values)
    assert min(machine._limits(tmp_path, group), default=None) == limit


@pytest.mark.parametrize(("quota", "limit"), [("-1", []), ("250000", [2.5])])
def test_groups_of_the_first_version(tmp_path: Path, quota: str, limit: list[float]) -> None:
    write(tmp_path / "docker" / "x", cpu__cfs_quota_us=quota, cpu__cfs_period_us="100000")
    assert machine._limits(tmp_path, "/docker/x") == limit


@pytest.mark.parametrize(("allowed", "limit", "cores"), [(8, None, 8), (8, 2.0, 2), (2, 6.0, 2), (8, 1.5, 2), (8, 0.2, 1)])
def test_affinity_and_limit_together(monkeypatch: pytest.MonkeyPatch, allowed: int, limit: float | None, cores: int) -> None:
    monkeypatch.setattr(machine, "allowed_cores", lambda: allowed)
    monkeypatch.setattr(machine, "cgroup_limit", lambda: limit)
    assert machine.usable_cores() == cores


def test_a_process_on_one_core_uses_one() -> None:
    core = min(os.sched_getaffinity(0))
    program = f"import os; os.sched_setaffinity(0, {{{core}}}); from storage.machine import usable_cores; print(usable_cores())"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True).stdout == b"1\n"


def test_freed_memory_is_kept_and_used_again() -> None:
    """Page faults of blocks of 40 MB that are asked for and freed again and again."""
    program = """
import resource
from storage.machine import keep_freed_memory
{keep}
def faults(): return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
b"x" * 40_000_000
before = faults()
for n in range(10): b"x" * (40_000_000 + n)
print(faults() - before)
"""
    found = []
    for keep in ("", "keep_freed_memory()"):
        run = subprocess.run([sys.executable, "-c", program.format(keep=keep)], cwd=ROOT, check=True, capture_output=True)
        found.append(int(run.stdout))
    assert found[0] > 10_000 and found[1] < 1_000, found
