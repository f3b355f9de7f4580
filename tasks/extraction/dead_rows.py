"""Dead rows of feature stores: rows of changed or removed videos that no kept run reads."""

from dataclasses import dataclass

from storage.features.store import FeatureStore
from storage.runs import RunRecord, latest_runs
from storage.workspace import Workspace
from tasks.extraction.extractors import IMPORTED
from tasks.framework.feature_access import read_feature_metadata, read_rows


@dataclass(frozen=True)
class DeadRows:
    """A store, the rows of it to keep (video id -> key), and how many others it has."""

    store: FeatureStore
    keep: dict[str, str]
    count: int

    def drop(self) -> None:
        self.store.compact(self.keep)


def find_dead_rows(workspace: Workspace, keep: int = 1) -> list[DeadRows]:
    """The rows of the kept runs' stores that none of these runs reads. A store is skipped while a run that uses it has not
    finished its extraction, and where two kept runs want different rows of one video."""
    wanted: dict[str, dict[str, str]] = {}
    skipped: set[str] = set()
    for run in latest_runs(workspace, keep):
        rows = _rows_of(workspace, run)
        if rows is None:
            skipped.update(run.stores)
            continue
        for store, keys in rows.items():
            known = wanted.setdefault(store, {})
            if any(known.get(id, key) != key for id, key in keys.items()):
                skipped.add(store)
            known.update(keys)
    found = []
    for name in sorted(wanted.keys() - skipped):
        path = workspace.features / name
        if path.parent.name == IMPORTED or not path.is_dir():
            continue
        opened = FeatureStore.open(path)
        view = opened.view()
        dead = len(view) - len(view.fresh(wanted[name]))
        if dead:
            found.append(DeadRows(opened, wanted[name], dead))
    return found


def _rows_of(workspace: Workspace, run: RunRecord) -> dict[str, dict[str, str]] | None:
    """store -> video id -> key of the rows that a run reads; None if its extraction is not finished."""
    extraction = next((key for stage, key in run.stages.values() if stage == "extract_features"), None)
    if extraction is None:
        return {}
    if workspace.done("extract_features", extraction) is None:
        return None
    folder = workspace.folder("extract_features", extraction)
    metadata = read_feature_metadata(folder)
    return {metadata[name]["store"]: keys for name, keys in read_rows(folder).items()}
