"""The events that Longtake sends to Prefect, and what deployments listen for.

    longtake.source.changed    something happened to a data folder: starts `refresh`. The watcher sends it; so may anybody.
    longtake.dataset.changed   a refresh took changes in: starts `train` when it says that enough has changed.

What an event carries is for people and for matching. No deployment takes its parameters from there."""

import time
from typing import Any
from uuid import UUID

from storage.errors import LongtakeError

SOURCE_CHANGED = "longtake.source.changed"
DATASET_CHANGED = "longtake.dataset.changed"
ENOUGH = "longtake.retrain"
"""label of an event that says whether enough has changed for a new training: yes or no"""
_RECORD_SECONDS = 120.0  # a busy server writes events down late


def resource(dataset: str, recipe: str, workspace: str) -> dict[str, str]:
    """What an event is about: a data set in a workspace, as one recipe uses it."""
    return {
        "prefect.resource.id": f"longtake.dataset.{dataset}",
        "prefect.resource.name": dataset,
        "longtake.recipe": recipe,
        "longtake.workspace": workspace,
    }


def send(event: str, about: dict[str, str], payload: dict[str, Any]) -> None:
    """Send an event and see it recorded: an embedded server that ends too early would lose it."""
    from prefect.events import emit_event

    sent = emit_event(event, resource=about, payload=payload)
    if sent is None or not _recorded(sent.id):
        raise LongtakeError(
            f"Prefect's server did not take the event {event}; is it up? 'longtake doctor' checks. Run the same command again"
        )


def _recorded(event_id: UUID) -> bool:
    from prefect.client.orchestration import get_client

    asked = {"filter": {"id": {"id": [str(event_id)]}}}
    deadline = time.monotonic() + _RECORD_SECONDS
    with get_client(sync_client=True) as client:
        while time.monotonic() < deadline:
            if client.request("POST", "/events/filter", json=asked).json()["total"]:
                return True
            time.sleep(0.2)
    return False
