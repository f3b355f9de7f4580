"""What a wheel holds: all that runs, and nothing else."""

import subprocess
import sys
import zipfile
from pathlib import Path

from tests import ROOT

ROOMS = ("flows", "tasks", "models", "storage")


def tracked(*patterns: str) -> set[str]:
    listed = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return set(listed.split())


def test_a_wheel_holds_every_file_of_the_rooms_and_no_other(tmp_path: Path) -> None:
    source = tmp_path / "source"
    for name in tracked():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes((ROOT / name).read_bytes())
    build = f"from setuptools import build_meta; build_meta.build_wheel({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", build], cwd=source, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("longtake-*.whl")
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert held == {"longtake.py", *tracked(*ROOMS)}
