"""What a folder's data set is called: as the folder, unless a recipe names it."""

import re
from pathlib import Path

from flows.recipe import Recipe
from storage.datasets.folder import FolderOptions
from storage.datasets.user_files import USER_FILES
from storage.datasets.videos import VideosOptions
from storage.runs import load_runs
from storage.workspace import Workspace
from tasks.extraction.extractors import IMPORTED

_TAKEN = {IMPORTED, USER_FILES}  # folders of feature stores that belong to no data set


def with_dataset_name(recipe: Recipe, workspace: Workspace) -> Recipe:
    """The recipe with a name for its data set. A folder that was run before keeps its name; of two folders of one name that
    both exist, the second gets a number, so that they share no results and no last run."""
    dataset = recipe.dataset
    if not isinstance(dataset, FolderOptions | VideosOptions) or "name" in dataset.model_fields_set or dataset.path is None:
        return recipe
    root = str(Path(dataset.path).expanduser().absolute())
    runs = load_runs(workspace)
    name = next((run.dataset for run in runs if run.data == root), None)
    if name is None:
        taken = _TAKEN | {run.dataset for run in runs if Path(run.data).is_dir()}
        stem = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(root).name).strip("-._")[:60] or dataset.name
        numbered = (f"{stem}-{number}" for number in range(2, len(taken) + 3))
        name = stem if stem not in taken else next(other for other in numbered if other not in taken)
    return recipe.model_copy(update={"dataset": dataset.model_copy(update={"name": name})})
