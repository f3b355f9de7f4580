"""What a person finds in the dashboard after a run: names with scores, fields, a leaderboard, and a report that opens."""

from __future__ import annotations

import base64
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from flows.execute import new_record
from flows.orchestration.leaderboard import leaderboard
from flows.orchestration.report_server import report_page
from flows.orchestration.workspace_labels import label_workspace, labelled_workspaces
from storage.runs import RunRecord
from tests.flows.command import run_longtake
from tests.flows.toy_place import TOY, Place


@dataclass
class Shown:
    """What Prefect's server has of one run."""

    server: httpx.Client
    run: dict[str, Any]
    artifacts: list[dict[str, Any]]
    place: Place

    def artifact(self, kind: str) -> dict[str, Any]:
        return next(each for each in self.artifacts if (each["key"] or "").startswith(f"{kind}-"))

    @property
    def link(self) -> str:
        found = re.search(r"\]\((/longtake/[^)]+)\)", self.artifact("report")["data"])
        assert found is not None, "an address without a host: it holds on any port"
        return found[1]


@pytest.fixture(scope="module")
def shown(served: dict[str, str], finished_place: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    place = Place(Path(shutil.copytree(finished_place, tmp_path_factory.mktemp("dashboard") / "place")))
    asked = ("run", TOY, "--data", place.data, "-w", place.workspace.root, "--force", "evaluate", "--name", "shown here")
    run_longtake(served, *asked)
    with httpx.Client(base_url=served["PREFECT_API_URL"].removesuffix("/api"), timeout=60) as server:
        named = {"flow_runs": {"name": {"like_": "shown here"}}}
        (run,) = server.post("/api/flow_runs/filter", json=named).json()
        mine = {"flow_runs": {"id": {"any_": [run["id"]]}}}
        yield Shown(server, run, server.post("/api/artifacts/filter", json=mine).json(), place)


def test_a_run_is_named_with_its_score_and_tagged_with_its_workspace(shown: Shown) -> None:
    assert re.fullmatch(r"shown here: Run \S+ on \S+: 2 of 9 stages, from evaluate on; CIDEr \d+\.\d", shown.run["name"])
    label = next(tag.removeprefix("workspace:") for tag in shown.run["tags"] if tag.startswith("workspace:"))
    assert label in shown.artifact("leaderboard")["key"] and label in shown.artifact("scores")["key"]


def test_its_parameters_are_fields(shown: Shown) -> None:
    asked = shown.run["parameters"]["run"]
    assert asked["workspace"] == str(shown.place.workspace.root) and asked["data"] == str(shown.place.data)
    assert asked["name"] == "shown here" and "\n" not in asked["recipe"], "not a whole recipe in one string"


def test_no_finished_bar_is_left(shown: Shown) -> None:
    assert {each["type"] for each in shown.artifacts} == {"markdown", "table"}


def test_the_link_to_the_report_opens_it(shown: Shown) -> None:
    answer = shown.server.get(shown.link)
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/html")
    (page,) = shown.place.workspace.root.glob("artifacts/report/*/report.html")
    assert answer.content == page.read_bytes()
    assert answer.headers["content-security-policy"].startswith("sandbox allow-scripts;"), "it cannot reach Prefect's API"
    assert shown.link in shown.artifact("leaderboard")["data"]


@pytest.mark.parametrize("headers", [{"Host": "evil.example"}, {"Origin": "http://evil.example"}])
def test_a_report_is_not_for_pages_from_elsewhere(shown: Shown, headers: dict[str, str]) -> None:
    answer = shown.server.get(shown.link, headers=headers)
    assert answer.status_code == 403 and "<html" not in answer.text


@pytest.mark.parametrize(
    "changed",
    [
        lambda label, stage, key: f"/longtake/{label}/{stage}/..%2f..%2f..",
        lambda label, stage, key: f"/longtake/{label}/{stage}/../{stage}/../../workspace.json",
        lambda label, stage, key: f"/longtake/{label}/..%2freport/{key}",
        lambda label, stage, key: f"/longtake/{label}/evaluate/{key}",
        lambda label, stage, key: f"/longtake/../{stage}/{key}",
        lambda label, stage, key: f"/longtake/{label}/{stage}/{key}/report.html",
        lambda label, stage, key: f"/longtake/{label}/{stage}/{'0' * len(key)}",
    ],
)
def test_nothing_but_reports_is_served(shown: Shown, changed: Any) -> None:
    asked = changed(*shown.link.split("/")[2:])
    url = shown.server.base_url.copy_with(raw_path=asked.encode())  # as it is: nothing is made plain on the way
    answer = shown.server.send(httpx.Request("GET", url))
    assert answer.status_code == 404 and "format" not in answer.text


def test_a_link_in_a_workspace_leads_nowhere(place: Place, tmp_path: Path) -> None:
    label = label_workspace(tmp_path / "home", place.workspace.root)
    (page,) = place.workspace.root.glob("artifacts/report/*/report.html")
    key = page.parent.name
    assert report_page(tmp_path / "home", label, "report", key) == page.resolve()
    (secret := tmp_path / "secret").write_text("secret")
    page.unlink()
    page.symlink_to(secret)
    assert report_page(tmp_path / "home", label, "report", key) is None


def test_workspaces_whose_folders_share_a_name_are_told_apart(tmp_path: Path) -> None:
    roots = [tmp_path / name for name in ("msvd/longtake-workspace", "coco/longtake-workspace", "x/coco/longtake-workspace")]
    labels = [label_workspace(tmp_path, root) for root in roots]
    assert labels[:2] == ["longtake-workspace", "coco-longtake-workspace"] and labels[2] not in labels[:2]
    assert [label_workspace(tmp_path, root) for root in roots] == labels, "for good"
    assert labelled_workspaces(tmp_path) == dict(zip(labels, map(str, roots), strict=True))


def scored(place: Place, number: int, cider: float, **values: Any) -> RunRecord:
    record = replace(new_record(place.plan()), id=f"run-{number:06}", state="done", scores={"CIDEr": cider, "BLEU-4": 0.5})
    return replace(record, stages={"evaluate": ("evaluate", f"key{number}")}, **values)


def test_a_leaderboard_lists_the_best_first_and_marks_the_newest(untouched: Place) -> None:
    runs = [scored(untouched, 3, 0.25, name="last"), scored(untouched, 2, 1.5), scored(untouched, 1, 0.5)]
    same = replace(runs[1], id="run-000000")
    failed = replace(runs[2], id="run-000009", state="failed", scores={})
    shown = leaderboard([*runs, same, failed], runs[0], lambda run: "/there" if run is runs[1] else "")
    rows = [line.split(" | ")[:4] for line in shown.splitlines() if re.match(r"\| \d", line)]
    assert rows == [
        ["| 1", "[000002](/there)", "150.0", "50.0"],
        ["| 2", "000001", "50.0", "50.0"],
        ["| 3", "000003 ← newest", "25.0", "50.0"],
    ]
    assert "METEOR" not in shown and "Not listed: 1 that failed." in shown
    picture = base64.b64decode(shown.partition("base64,")[2].partition(")")[0]).decode()
    assert picture.count("<circle") == 3 and ">150.0<" in picture and ">25.0<" in picture


def test_a_runs_words_stay_words_in_a_leaderboard(untouched: Place) -> None:
    run = scored(untouched, 1, 0.5, name="a | b", note="[x](http://evil) <img src=x> `c`\n| d |")
    row = leaderboard([run], run, lambda _: "").splitlines()[4]
    assert row.count(" | ") == 8 and not re.search(r"(?<!\\)[\[<`]", row)
