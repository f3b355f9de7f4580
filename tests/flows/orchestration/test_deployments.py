"""Deployments: forms that a person can fill in, what starts them, and prefect.yaml beside the table."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from prefect.events import DeploymentEventTrigger

from flows.orchestration.deployments import DEPLOYMENTS, DeploymentTarget, deployment_of
from flows.orchestration.events import DATASET_CHANGED, SOURCE_CHANGED, resource
from flows.pipeline import STAGES
from tests import ROOT
from tests.flows.conftest import Longtake

YAML = ROOT / "prefect.yaml"
VALUES = {"recipe": "demo", "workspace": "/w", "data": None, "settings": ["a.b=1"], "retrain_after": 7}
DEMO = DeploymentTarget("demo", VALUES, "demo", "demo")


def schema(name: str) -> dict[str, Any]:
    return DEPLOYMENTS[name].load().parameters.model_dump()


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_every_parameter_has_a_type_and_an_explanation_for_the_form(name: str) -> None:
    flow = DEPLOYMENTS[name].load()
    assert flow.name == name and flow.description
    nested = schema(name)["definitions"].get("RunParameters", {})
    for parameter, about in [*flow.parameters.properties.items(), *nested.get("properties", {}).items()]:
        assert about.get("description", "").endswith("."), f"{name} does not explain {parameter}"
        assert about.keys() & {"type", "anyOf", "enum", "$ref", "allOf"}, f"{name}.{parameter} has no type"
    assert set(flow.parameters.required) == ({"files", "workspace"} if name == "caption" else {"run"})
    assert name == "caption" or set(nested["required"]) == {"recipe", "workspace"}


def test_the_form_specs_the_stages_as_a_list() -> None:
    assert schema("pipeline")["properties"]["until"]["enum"] == [stage.name for stage in STAGES]


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_a_deployment_takes_the_values_its_flow_knows(name: str) -> None:
    deployment = deployment_of(name, DEMO, "pool")
    expected: dict[str, Any] = {"run": {"recipe": "demo", "workspace": "/w", "settings": ["a.b=1"]}}
    if name == "caption":
        expected = {"workspace": "/w"}
    assert deployment.parameters == expected | ({"retrain_after": 7} if name == "refresh" else {})
    assert deployment.full_name == f"{name}/demo" and deployment.work_pool_name == "pool"
    assert {"longtake", "recipe:demo", "dataset:demo"} <= set(deployment.tags)
    assert deployment.job_variables == {"env": {"PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30"}}, "signs of life"
    assert deployment.entrypoint == DEPLOYMENTS[name].flow, "found by its module, so that a worker needs no checkout"


def triggers(name: str, target: DeploymentTarget = DEMO) -> list[Any]:
    return list(deployment_of(name, target, "pool").triggers)


def fires(trigger: DeploymentEventTrigger, event: str, labels: dict[str, str]) -> bool:
    return event in trigger.expect and all(labels.get(k) == v for k, v in trigger.match.root.items())


def test_an_event_of_its_own_data_set_starts_a_refresh_and_enough_change_a_training() -> None:
    (source,), (changed,) = triggers("refresh"), triggers("train")
    mine, other = resource("demo", "demo", "/w"), resource("msvd", "demo", "/w")
    assert fires(source, SOURCE_CHANGED, mine) and not fires(source, SOURCE_CHANGED, other)
    assert fires(changed, DATASET_CHANGED, mine | {"longtake.retrain": "yes"})
    assert not fires(changed, DATASET_CHANGED, mine | {"longtake.retrain": "no"})
    assert not fires(changed, DATASET_CHANGED, resource("demo", "demo", "/elsewhere") | {"longtake.retrain": "yes"})
    assert triggers("pipeline") == triggers("evaluate") == []


def test_no_deployment_takes_parameters_from_an_event() -> None:
    assert [trigger.parameters for name in DEPLOYMENTS for trigger in triggers(name)] == [{}, {}]


def test_without_a_recipe_only_a_person_starts_anything() -> None:
    bare = DeploymentTarget("longtake", {"workspace": "/w"})
    for name in DEPLOYMENTS:
        expected = {"workspace": "/w"} if name == "caption" else {"run": {"workspace": "/w"}}
        assert triggers(name, bare) == [] and deployment_of(name, bare, "pool").parameters == expected


def test_the_clock_starts_refresh_alone() -> None:
    scheduled = {name: deployment_of(name, DEMO, "pool", "0 3 * * *", "Europe/Berlin").schedules for name in DEPLOYMENTS}
    assert [name for name, found in scheduled.items() if found] == ["refresh"]
    schedule = scheduled["refresh"][0].schedule
    assert (schedule.cron, schedule.timezone) == ("0 3 * * *", "Europe/Berlin")


def test_prefect_yaml_says_the_same_as_the_table() -> None:
    listed = {each["entrypoint"]: each for each in yaml.safe_load(YAML.read_text())["deployments"]}
    assert list(listed) == ["{}/{}/{}.py:{}".format(*spec.flow.split(".")) for spec in DEPLOYMENTS.values()]
    for (name, spec), said in zip(DEPLOYMENTS.items(), listed.values(), strict=True):
        assert said["work_pool"]["job_variables"] == deployment_of(name, DEMO, "pool").job_variables
        assert said["description"] == spec.about and bool(said.get("schedules")) == spec.scheduled
        ours, theirs = triggers(name), said.get("triggers", [])
        assert [t.name for t in ours] == [t["name"] for t in theirs]
        for our, their in zip(ours, theirs, strict=True):
            assert our.expect == set(their["expect"])
            # The folder of a workspace is not known to a file that is shipped.
            assert {k: v for k, v in our.match.root.items() if k != "longtake.workspace"} == their["match"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["deploy", "--cron", "every day"], "--cron 'every day'"),
        (["deploy", "--cron", "0 3 * * *", "--timezone", "Mars/Olympus"], "time zone 'Mars/Olympus' is not understood"),
        (["deploy", "--recipe", "dmo"], "did you mean 'demo'?"),
        (["refresh", "demo", "--announce"], "--announce goes with --watch"),
        (["refresh", "folder", "--watch", "5"], "pass the data folder with --data"),
        (["dashboard", "--port", "99999"], "Invalid value"),
    ],
)
def test_wrong_usage_is_told_before_a_server_is_started(
    longtake: Longtake, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    monkeypatch.setattr("flows.orchestration.embedded_server.configure", lambda **_: None)  # sets the environment
    monkeypatch.setattr("flows.orchestration.embedded_server.prefect_api", lambda: pytest.fail("a server was started"))
    answer = longtake(*arguments)
    assert answer.code == 2 and said in " ".join(answer.err.replace("│", " ").split())
