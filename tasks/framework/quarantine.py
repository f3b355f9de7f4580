"""All problems with the data of a run: what the catalogue, the frame plans and the extraction set aside."""

from collections.abc import Iterable

import pyarrow.parquet as pq

from storage.records import ArtifactRef, Problem
from storage.workspace import Workspace


def gather_problems(workspace: Workspace, refs: Iterable[ArtifactRef]) -> list[Problem]:
    """Quarantined items first; an item that several stages could not use is listed once for each reason."""
    found: dict[tuple[str, str, str], Problem] = {}
    for ref in refs:
        path = workspace.root / ref.uri / "quarantine.parquet"
        if path.exists():
            for row in pq.read_table(path).to_pylist():
                problem = Problem(**row)
                found.setdefault((problem.item, problem.kind, problem.reason), problem)
    return sorted(found.values(), key=lambda p: (not p.quarantined, p.item, p.kind))
