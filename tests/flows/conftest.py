"""Shared by the flows' tests: the command line in this process, and a finished place to change."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.cli.main import main
from flows.pipeline import plan_pipeline
from storage.workspace import Workspace
from tests.flows.command import environment_of
from tests.flows.toy_place import LABELS, TOY, Place, executed, recipe_on


@dataclass(frozen=True)
class Answer:
    """What a command came to."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Longtake = Callable[..., Answer]


@pytest.fixture
def longtake(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Longtake:
    """longtake("status", ...) runs the command in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LONGTAKE_WORKSPACE", raising=False)

    def run(*arguments: str | Path) -> Answer:
        monkeypatch.setattr(sys, "argv", ["longtake", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return Answer(int(ended.value.code or 0), out, err)

    return run


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """The toy recipe as a user's own file, without a place of its own."""
    values = yaml.safe_load(TOY.read_text()) | {"name": "mine", "dataset": {"kind": "folder"}, "text": {"min_count": 3}}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(values))
    return tmp_path / "mine.yaml"


@pytest.fixture(scope="session")
def finished_place(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data and a workspace in which everything is done. Tests use copies."""
    root = tmp_path_factory.mktemp("finished")
    shutil.copytree(world, root / "data")
    plan = plan_pipeline(recipe_on(root / "data"), Workspace.open(root / "workspace"))
    assert executed(plan) == LABELS
    return root


@pytest.fixture(scope="session")
def untouched(finished_place: Path) -> Place:
    """The finished place itself, for tests that only plan."""
    return Place(finished_place)


@pytest.fixture
def place(finished_place: Path, tmp_path: Path) -> Place:
    """A copy of the finished place that the test may change."""
    return Place(Path(shutil.copytree(finished_place, tmp_path / "place")))


_SERVER = """
from flows.orchestration.embedded_server import configure
configure()
from flows.orchestration.prefect_server import end_server, start_server
server, url = start_server()
print(url + "/api", flush=True)
input()
end_server(server)
"""


@pytest.fixture(scope="session")
def prefect_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Prefect folder with a new database. Tests use copies: making one takes Prefect longer than copying it."""
    home = tmp_path_factory.mktemp("prefect-template")
    subprocess.run([sys.executable, "-c", _SERVER], env=environment_of(home), input=b"\n", check=True, timeout=900)
    return home


@pytest.fixture(scope="session")
def served(prefect_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of commands that need some Prefect server: one for the session, so that none starts its own."""
    environment = environment_of(tmp_path_factory.mktemp("prefect"), prefect_home)
    holder = [sys.executable, "-c", _SERVER]
    with subprocess.Popen(holder, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield environment | {"PREFECT_API_URL": process.stdout.readline().strip()}
        process.communicate("\n")


@pytest.fixture(scope="module")
def environment(prefect_home: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of commands in processes of their own, with a Prefect folder for this module."""
    return environment_of(tmp_path_factory.mktemp("prefect"), prefect_home)
