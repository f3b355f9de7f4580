"""The quarantine: a stage sets a bad item aside with its reason and goes on; runs gather what their stages set aside."""

from collections.abc import Iterable

import pyarrow.parquet as pq

from storage.catalogue import problem_table
from storage.files.atomic import write_parquet
from storage.records import ArtifactRef, Problem
from storage.workspace import Workspace
from tasks.framework.stage import StageContext


def set_aside(context: StageContext, problems: list[Problem]) -> None:
    """Keep the items that a stage could not use, and why, beside its result."""
    write_parquet(context.folder / "quarantine.parquet", problem_table(problems))


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
