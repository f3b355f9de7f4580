"""The command as a user runs it, in processes of its own: to the end, twice, at once, killed, and on bad data.

Prefect runs for real, with its embedded server on a database of this test session."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from storage.features.store import FeatureStore
from tests.flows.command import TINY, command, run_longtake


def results(workspace: Path) -> dict[str, object]:
    """Everything that must not depend on kills: digests of features, bytes of tables, captions, weights and scores."""
    found: dict[str, object] = {}
    for store in workspace.glob("features/*/*"):
        found[str(store.relative_to(workspace))] = FeatureStore.open(store).digest()
    for pattern in ("*.parquet", "*.safetensors", "captions.jsonl", "curves.jsonl", "scores.json", "vocabulary.json"):
        for path in workspace.glob(f"artifacts/*/*/{pattern}"):
            found[str(path.relative_to(workspace))] = path.read_bytes()
    return found


@pytest.fixture(scope="module")
def finished(environment: dict[str, str], world: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with one undisturbed run."""
    workspace = tmp_path_factory.mktemp("finished") / "w"
    done = run_longtake(environment, "run", TINY, "--data", world, "-w", workspace)
    assert "CIDEr" in done.stdout and "Report:" in done.stdout
    return workspace


def test_a_second_run_does_nothing_and_says_so(environment: dict[str, str], world: Path, finished: Path) -> None:
    before = results(finished)
    began = time.monotonic()
    done = run_longtake(environment, "run", TINY, "--data", world, "-w", finished)
    assert "Nothing to do: every stage is cached." in done.stdout
    assert done.stderr.count("cached") == 9
    assert results(finished) == before
    assert time.monotonic() - began < 60, "a no-op takes seconds (the bound is loose: machines are shared)"


def test_the_run_history_is_whole_in_prefects_database(environment: dict[str, str], finished: Path) -> None:
    import sqlite3

    with sqlite3.connect(Path(environment["PREFECT_HOME"]) / "prefect.db") as database:
        states = [row[0] for row in database.execute("select state_type from task_run")]
        names = [row[0] for row in database.execute("select name from task_run")]
    assert len(states) >= 9 and set(states) == {"COMPLETED"}
    assert any(name.startswith("seed") for name in names)


def test_the_curve_of_a_training_is_a_table_in_prefect(environment: dict[str, str], finished: Path) -> None:
    import sqlite3

    with sqlite3.connect(Path(environment["PREFECT_HOME"]) / "prefect.db") as database:
        found = database.execute("select type, data from artifact where description like 'The curve of **seeding**%'").fetchall()
    curve = next(finished.glob("artifacts/seed/*/curves.jsonl")).read_text().splitlines()
    tables = [json.loads(json.loads(data)) for kind, data in found if kind == "table"]
    assert [point["epoch"] for point in tables[0]] == [json.loads(line)["epoch"] for line in curve]
    assert all({"total", "val_cider"} <= point.keys() for point in tables[0])


def test_deleting_prefects_database_loses_no_work(
    environment: dict[str, str], world: Path, finished: Path, tmp_path: Path
) -> None:
    other = {**environment, "PREFECT_HOME": str(tmp_path / "new-home")}
    done = run_longtake(other, "run", TINY, "--data", world, "-w", finished, "--json")
    assert json.loads(done.stdout)["worked"] == []


def test_a_changed_value_runs_exactly_what_depends_on_it(
    served: dict[str, str], world: Path, finished: Path, tmp_path: Path
) -> None:
    workspace = Path(shutil.copytree(finished, tmp_path / "w"))
    changed = ("run", TINY, "--data", world, "-w", workspace, "--set", "decoding.width=3", "--json")
    planned = json.loads(run_longtake(served, *changed, "--dry-run").stdout)["stages"]
    foretold = [step["stage"] for step in planned if step["state"] != "done"]
    assert foretold == ["caption", "evaluate", "report"]
    assert json.loads(run_longtake(served, *changed).stdout)["worked"] == foretold


@pytest.mark.slow
def test_two_runs_at_once_share_the_work(environment: dict[str, str], world: Path, finished: Path, tmp_path: Path) -> None:
    workspace = tmp_path / "w"
    arguments = command("run", TINY, "--data", world, "-w", workspace, "--json")
    both = [subprocess.Popen(arguments, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    answers = [json.loads(process.communicate(timeout=300)[0]) for process in both]
    assert [process.returncode for process in both] == [0, 0]
    worked = answers[0]["worked"] + answers[1]["worked"]
    assert len(worked) == len(set(worked)) == 9, "every stage was made once, by one of the two"
    assert results(workspace) == results(finished)


def killed_run(environment: dict[str, str], arguments: list[str], workspace: Path, stage: str, delay: float) -> bool:
    """Start the command and kill it `delay` seconds after it began a stage; False if it ended before."""
    process = subprocess.Popen(arguments, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None and not (workspace / "artifacts" / stage).exists():
        time.sleep(0.005)
    time.sleep(delay)
    alive = process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.wait()
    return alive


STAGES = ("catalogue", "prepare_text", "sample_frames", "train_tagger", "extract_features", "seed", "caption", "report")


def after_kills(environment: dict[str, str], world: Path, workspace: Path, kills: list[tuple[str, float]]) -> dict[str, object]:
    """The results of a workspace whose run was killed at these moments and then went on to its end."""
    arguments = command("run", TINY, "--data", world, "-w", workspace)
    killed = sum(killed_run(environment, arguments, workspace, stage, delay) for stage, delay in kills)
    assert killed >= len(kills) // 2, "most kills must hit a running command"
    run_longtake(environment, "run", TINY, "--data", world, "-w", workspace)
    return results(workspace)


def test_kill_dash_nine_at_random_moments_changes_nothing(
    served: dict[str, str], world: Path, finished: Path, tmp_path: Path
) -> None:
    seed = random.SystemRandom().randrange(10**6)
    print("seed", seed)
    draw = random.Random(seed)
    stages = sorted(draw.sample(STAGES, 2), key=STAGES.index)
    kills = [(stage, draw.uniform(0, 0.4)) for stage in stages]
    assert after_kills(served, world, tmp_path / "w", kills) == results(finished)


@pytest.mark.slow
def test_many_kills_change_nothing(environment: dict[str, str], world: Path, finished: Path, tmp_path: Path) -> None:
    draw = random.Random(7)
    for round_ in range(5):
        kills = [(stage, draw.uniform(0, 0.8)) for stage in STAGES]
        assert after_kills(environment, world, tmp_path / f"w{round_}", kills) == results(finished)


def test_bad_files_are_listed_the_rest_goes_on_and_the_exit_code_is_3(
    served: dict[str, str], world: Path, tmp_path: Path
) -> None:
    root = Path(shutil.copytree(world, tmp_path / "folder"))
    clips = {path.stem: path for path in (root / "videos").glob("*.mp4")}
    first, second, third = sorted(clips)[:3]
    broken = {first: b"", second: b"words, not a film", third: clips[third].read_bytes()[:2000]}
    for id, data in broken.items():
        clips[id].write_bytes(data)
    with (root / "captions.jsonl").open("a") as file:
        file.write('{"video": "../../etc/passwd", "caption": "root", "split": "test"}\n')
    done = run_longtake(served, "run", TINY, "--data", root, "--kind", "folder", "-w", tmp_path / "w", "--json", code=3)
    listed = {problem["item"]: problem for problem in json.loads(done.stdout)["problems"] if problem["quarantined"]}
    assert set(broken) <= set(listed) and any("passwd" in item for item in listed)
    assert all(problem["reason"] for problem in listed.values())
    assert json.loads(done.stdout)["run"]["scores"]["CIDEr"] >= 0


def test_a_run_that_cannot_go_on_says_why_in_one_line_and_lists_the_bad_files(served: dict[str, str], tmp_path: Path) -> None:
    root = tmp_path / "junk"
    root.mkdir()
    rows = ["video,caption,split"]
    for n, split in enumerate(("train", "train", "val", "test")):
        (root / f"v{n}.mp4").write_text("not a film")
        rows.append(f"v{n}.mp4,a ball,{split}")
    (root / "captions.csv").write_text("\n".join(rows))
    done = run_longtake(served, "run", TINY, "--data", root, "--kind", "folder", "-w", tmp_path / "w", code=1)
    assert "error: no training video can be decoded" in done.stderr
    assert all(f"v{n}: " in done.stderr for n in range(4)), "each bad file is listed with its reason"
