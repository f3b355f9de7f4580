"""Finding the run that a command names: by its name, by its recipe, or by its id, short or long, or the beginning of it."""

from collections.abc import Sequence

from storage.errors import UsageError
from storage.runs import RunRecord
from storage.workspace import Workspace


def find_run(runs: Sequence[RunRecord], wanted: str, kind: str) -> RunRecord:
    """The newest run of this name or recipe, or the one whose id begins so. `runs` are newest first; `kind` says what they all
    are."""
    by_id = [run for run in runs if run.id.startswith(wanted) or run.short_id.startswith(wanted)]
    named = [run for run in runs if run.name == wanted] or [run for run in runs if run.recipe_name == wanted]
    found = named or by_id[: len(by_id) == 1]
    if found:
        return found[0]
    if by_id:
        raise UsageError(f"{len(by_id)} runs begin with '{wanted}'; give more of the id: {_listed(by_id)}")
    raise UsageError(f"no {kind} run is called '{wanted}'; give the id of a run, its name or its recipe: {_listed(runs)}")


def newest_run(workspace: Workspace, runs: Sequence[RunRecord]) -> RunRecord:
    """The newest of `runs`, which are newest first, that is no variant of a sweep; if all are, the newest."""
    variants = {path.stem for path in (workspace.root / "sweeps").glob("*/recipes/*.yaml")}
    return next((run for run in runs if run.recipe_name not in variants), runs[0])


def _listed(runs: Sequence[RunRecord]) -> str:
    shown = ", ".join(f"{run.short_id} ({run.name or run.recipe_name})" for run in runs[:10])
    return shown + (f" and {len(runs) - 10} more" if len(runs) > 10 else "")
