"""Commands about feature stores: importing, listing, verifying."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from storage.datasets import READERS, DatasetOptions, detect_kind, read_dataset
from storage.errors import UsageError
from storage.feature_import import ImportReport, import_features
from storage.features import FeatureStore
from storage.records import Problem
from storage.workspace import Workspace
from tasks.extractors import IMPORTED
from tasks.progress import meter


def import_into(
    workspace: Workspace, name: str, source: Path, ids: Path | None, data: Path | None, kind: str | None
) -> ImportReport:
    """Import features under a name; with a data set, only for the ids it has."""
    known = None
    if data is not None:
        root = data.expanduser().absolute()
        if kind is not None and kind not in READERS:
            raise UsageError(f"there is no kind of data set '{kind}'; kinds: {', '.join(READERS)}")
        options = TypeAdapter(DatasetOptions).validate_python({"kind": kind or detect_kind(root)})
        known = {video.id for video in read_dataset(options, root).videos}
    store = workspace.feature_store(IMPORTED, name)
    with workspace.lock(f"import-{name}"), meter("importing features", 1, "rows") as shown:

        def progress(done: int, total: int) -> None:
            shown.total = total
            shown.to(done)

        return import_features(store, source, ids=ids, known_ids=known, name=name, progress=progress)


def stores(workspace: Workspace) -> list[FeatureStore]:
    return [FeatureStore.open(path.parent) for path in sorted(workspace.features.glob("*/*/zarr.json"))]


def describe_stores(workspace: Workspace) -> list[dict[str, Any]]:
    rows = []
    for store in stores(workspace):
        shape = [len(store.view().lengths()), *(store.tail or ())]
        rows.append(
            {
                "store": str(store.path.relative_to(workspace.features)),
                "videos": shape[0],
                "shape": ["L", *shape[1:]],
                "bytes": store.nbytes,
                "words": store.provenance.get("words", "imported"),
                "provenance": store.provenance,
            }
        )
    return rows


def verify_stores(workspace: Workspace) -> list[Problem]:
    return [problem for store in stores(workspace) for problem in store.verify()]
