"""Finding the run that a command names: by its id, by the beginning of its id, or by its recipe."""

from collections.abc import Sequence

from storage.errors import UsageError
from storage.runs import RunRecord


def find_run(runs: Sequence[RunRecord], wanted: str, kind: str) -> RunRecord:
    """The newest run of a recipe, or the one whose id begins so. `runs` are newest first; `kind` says what they all are."""
    by_id = [run for run in runs if run.id.startswith(wanted)]
    found = [run for run in runs if run.recipe_name == wanted] or by_id[: len(by_id) == 1]
    if found:
        return found[0]
    if by_id:
        raise UsageError(f"{len(by_id)} runs begin with '{wanted}'; give more of the id: {_listed(by_id)}")
    raise UsageError(f"no {kind} run is called '{wanted}'; give the id of a run or the name of its recipe: {_listed(runs)}")


def _listed(runs: Sequence[RunRecord]) -> str:
    shown = ", ".join(f"{run.id} ({run.recipe_name})" for run in runs[:10])
    return shown + (f" and {len(runs) - 10} more" if len(runs) > 10 else "")
