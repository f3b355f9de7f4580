"""What `longtake deploy` registers with a Prefect server: one table of deployments, a work pool, and what starts them.

    longtake.source.changed  or a cron line  ->  refresh  ->  longtake.dataset.changed  ->  train

Flows are found by their module, so a worker needs Longtake installed and no copy of this folder."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, cast

from prefect import Flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate, GlobalConcurrencyLimitUpdate, WorkPoolCreate
from prefect.deployments.runner import EntrypointType, RunnerDeployment
from prefect.events import DeploymentEventTrigger
from prefect.exceptions import ObjectNotFound
from prefect.schedules import Cron
from prefect.workers.utilities import get_default_base_job_template_for_infrastructure_type

from flows.orchestration.crash_recovery import HEARTBEAT
from flows.orchestration.events import DATASET_CHANGED, ENOUGH, SOURCE_CHANGED, resource
from flows.orchestration.flows import RunParameters
from storage.errors import UsageError


@dataclass(frozen=True)
class DeploymentSpec:
    """One deployment: where its flow is, and what starts it besides a person."""

    flow: str
    about: str
    listens_to: str = ""
    only_if: tuple[tuple[str, str], ...] = ()
    """labels that the event must carry"""
    scheduled: bool = False
    """also started by the clock, in case an event was lost"""

    def load(self) -> Flow[..., Any]:
        module, _, name = self.flow.rpartition(".")
        found: Flow[..., Any] = getattr(import_module(module), name)
        return found


DEPLOYMENTS: dict[str, DeploymentSpec] = {
    "pipeline": DeploymentSpec(
        "flows.orchestration.flows.pipeline_flow",
        "Everything from a folder of videos and captions to a scored captioner and its report.",
    ),
    "refresh": DeploymentSpec(
        "flows.orchestration.flows.refresh_flow",
        "Looks at the data folder; extracts what is new or changed, drops what is gone, and announces it by an event.",
        listens_to=SOURCE_CHANGED,
        scheduled=True,
    ),
    "train": DeploymentSpec(
        "flows.orchestration.flows.train_flow",
        "Up to the trained captioner. Starts by itself when a refresh says that enough has changed.",
        listens_to=DATASET_CHANGED,
        only_if=((ENOUGH, "yes"),),
    ),
    "evaluate": DeploymentSpec(
        "flows.orchestration.flows.evaluate_flow",
        "Scores the captioner, writes the report, and shows the scores beside those of the last run.",
    ),
    "caption": DeploymentSpec(
        "flows.orchestration.flows.caption_flow",
        "Captions videos and images that the worker can see, by a captioner that is trained.",
    ),
}


@dataclass(frozen=True)
class DeploymentTarget:
    """What deployments are registered for: a name, and the default values of their forms. Without a recipe they are
    registered for everything: nothing starts them but a person who fills in the form."""

    name: str
    parameters: Mapping[str, Any]
    recipe: str = ""
    dataset: str = ""


def deploy(target: DeploymentTarget, pool: str, pool_type: str = "process", cron: str = "", timezone: str = "UTC") -> list[str]:
    """Register every deployment for a target, in a work pool that is created if it is new. Returns their full names."""
    with get_client(sync_client=True) as client:
        _ensure_pool(client, pool, pool_type)
    done = []
    for name in DEPLOYMENTS:
        deployment = deployment_of(name, target, pool, cron, timezone)
        deployment.apply(work_pool_name=pool)
        done.append(deployment.full_name)
    return done


def deployment_of(name: str, target: DeploymentTarget, pool: str, cron: str = "", timezone: str = "UTC") -> RunnerDeployment:
    """One of the table as Prefect's definition of a deployment; nothing is registered yet."""
    spec = DEPLOYMENTS[name]
    flow = spec.load()
    deployment = flow.to_deployment(
        name=target.name,
        description=spec.about,
        parameters=_parameters(flow, target.parameters),
        tags=["longtake", *([f"recipe:{target.recipe}", f"dataset:{target.dataset}"] if target.recipe else [])],
        schedule=Cron(cron, timezone=timezone) if cron and spec.scheduled else None,
        triggers=[_trigger(name, spec, target)] if spec.listens_to and target.recipe else [],
        entrypoint_type=EntrypointType.MODULE_PATH,
        work_pool_name=pool,
        job_variables={"env": HEARTBEAT},
    )
    return cast(RunnerDeployment, deployment)


def _parameters(flow: Flow[..., Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The default values of a flow's form: its own, and those of its RunParameters where it takes them."""
    given = {name: value for name, value in values.items() if value is not None}
    own = {name: value for name, value in given.items() if name in flow.parameters.properties}
    if "files" in flow.parameters.properties:  # captioning is about files and a finished run, not about a recipe
        return own
    return own | {"run": {name: value for name, value in given.items() if name in RunParameters.model_fields}}


def _trigger(name: str, spec: DeploymentSpec, target: DeploymentTarget) -> DeploymentEventTrigger:
    """One run for each event about this data set in this workspace, as this recipe uses it."""
    about = resource(target.dataset, target.recipe, str(target.parameters["workspace"]))
    # Whoever announces new files knows the data set, not the recipes that use it.
    labels = ["prefect.resource.id"] + ([] if spec.listens_to == SOURCE_CHANGED else ["longtake.recipe", "longtake.workspace"])
    return DeploymentEventTrigger(
        name=f"{name} {target.name} on {spec.listens_to}",
        description=f"Starts {name}/{target.name} when {spec.listens_to} is about '{target.dataset}'.",
        expect={spec.listens_to},
        match={label: about[label] for label in labels} | dict(spec.only_if),
        parameters={},
    )


def _ensure_pool(client: SyncPrefectClient, name: str, pool_type: str) -> None:
    try:
        found = client.read_work_pool(name)
    except ObjectNotFound:
        template = asyncio.run(get_default_base_job_template_for_infrastructure_type(pool_type))
        if template is None:
            raise UsageError(f"Prefect's server knows no work pools of type '{pool_type}'; try process") from None
        about = "Where Longtake's deployments run."
        client.create_work_pool(WorkPoolCreate(name=name, type=pool_type, description=about, base_job_template=template))
        return
    if found.type != pool_type:
        raise UsageError(
            f"the work pool '{name}' is there already and of type {found.type}, not {pool_type}; choose another --pool"
        )


def ensure_slots(name: str, slots: int) -> None:
    """A global concurrency limit of so many slots: how many stages may use GPUs at once."""
    with get_client(sync_client=True) as client:
        found = client.read_global_concurrency_limits(limit=200, offset=0)
        if any(limit.name == name for limit in found):
            client.update_global_concurrency_limit(name, GlobalConcurrencyLimitUpdate(limit=slots))
        else:
            client.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name=name, limit=slots))
