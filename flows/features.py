"""Commands about feature stores: importing, listing, verifying, exporting, and copies on S3-like storage."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from storage.datasets import READERS, DatasetOptions, detect_kind, read_dataset
from storage.errors import StorageError, UsageError
from storage.features.exporting import ExportFormat, ExportReport, export_features
from storage.features.import_sources import WHOLE, MatrixPart, read_ids
from storage.features.importing import ImportReport, import_features, imports
from storage.features.s3_sync import RemoteFeatures, Transfer
from storage.features.store import FeatureDType, FeatureStore
from storage.records import Problem
from storage.workspace import Workspace
from tasks.extraction.class_names import class_names_of, likeliest
from tasks.extraction.extractors import IMPORTED
from tasks.framework.progress import progress_on_demand

_MEGABYTE = 1_000_000


def import_into(
    workspace: Workspace,
    name: str,
    source: Path,
    ids: Path | None,
    data: Path | None,
    kind: str | None,
    dtype: FeatureDType | None = None,
    part: MatrixPart = WHOLE,
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
    with workspace.lock(f"import-{name}"), progress_on_demand("importing features", "rows") as progress:
        return import_features(store, source, ids=ids, known_ids=known, name=name, dtype=dtype, part=part, progress=progress)


def stores(workspace: Workspace) -> dict[str, FeatureStore]:
    """<data set>/<name> -> store, of every store of the workspace."""
    return {_name_of(path): FeatureStore.open(path) for path in _folders(workspace)}


def find_store(workspace: Workspace, name: str) -> tuple[str, FeatureStore]:
    """The store of this name as 'longtake features list' prints it. The last part alone will do, or the name that the
    recipe gave the feature, if only one store is called so."""
    known = [_name_of(path) for path in _folders(workspace)]
    found = [full for full in known if name in (full, full.partition("/")[2])]
    found = found or [full for full in known if full.partition("/")[2].rpartition("-")[0] == name]
    if len(found) == 1:
        return found[0], FeatureStore.open(workspace.features / found[0])
    if found:
        raise UsageError(f"several feature stores are called '{name}': {', '.join(found)}; give the whole name")
    raise UsageError(f"there is no feature store '{name}'; there are {', '.join(known) or 'none yet'}")


def describe_store(name: str, store: FeatureStore) -> dict[str, Any]:
    """Describe a store: counts, sizes, how it was computed."""
    view = store.view()
    lengths = view.lengths()
    files = [path for path in store.path.rglob("*") if path.is_file()]
    return {
        "store": name,
        "videos": len(lengths),
        "steps": sum(lengths.values()),
        "without_steps": sum(not length for length in lengths.values()),
        "older_rows": len(view) - len(lengths),
        "damaged": sum(view.table()["damaged"].to_pylist()),
        "shape": ["L", *(store.feature_shape or ())],
        "dtype": store.dtype.name,
        "bytes": sum(path.stat().st_size for path in files),
        "segments": len(view.segments),
        "files": len(files),
        "words": store.provenance.get("words", "imported"),
        "provenance": store.provenance,
        "imports": imports(store),
    }


def top_classes(store: FeatureStore, name: str, videos: Sequence[str], count: int) -> list[dict[str, Any]]:
    """The likeliest classes of videos (all, if none is named), averaged over time, from a store of class probabilities."""
    options = store.provenance.get("options", {})
    if options.get("output") != "classes" or store.feature_shape is None:
        raise UsageError(f"{name} holds no classes; add a feature with 'output: classes' to the recipe and extract it")
    names = class_names_of(store)
    view = store.view()
    rows, lengths = [], view.lengths()
    for id in videos or sorted(lengths):
        if id not in lengths:
            raise UsageError(f"there is no video '{id}' in {name}; it has {', '.join(sorted(lengths)[:5])} ...")
        if lengths[id]:
            best = likeliest(view.read(id), names, count)
            shown = [{"class": name, "probability": round(probability, 4)} for name, probability in best]
            rows.append({"video": id, "classes": shown})
    return rows


def describe_stores(workspace: Workspace) -> list[dict[str, Any]]:
    return [describe_store(name, store) for name, store in stores(workspace).items()]


def verify_stores(workspace: Workspace, name: str | None, drop: bool) -> tuple[dict[str, list[Problem]], int]:
    """Check one store or all -> store -> what is wrong with it, and how many problems are left; `drop` takes bad rows out."""
    names = [find_store(workspace, name)[0]] if name else [_name_of(path) for path in _folders(workspace)]
    found: dict[str, list[Problem]] = {}
    left = 0
    for full in names:
        with progress_on_demand(f"verifying {full}", "rows") as progress:
            try:
                store = FeatureStore.open(workspace.features / full)
            except StorageError as error:
                found[full] = [Problem(full, "store", str(error))]
                left += 1
                continue
            found[full] = remaining = store.verify(progress)
        if drop and remaining:
            store.drop_bad()
            remaining = store.verify()
        left += len(remaining)
    return found, left


def export_store(
    workspace: Workspace, name: str, form: ExportFormat, path: Path | None, ids: Path | None, overwrite: bool
) -> ExportReport:
    """Export a store to a folder of .npy or an HDF5 file, by default beside the user: <name> or <name>.h5."""
    _, store = find_store(workspace, name)
    target = path or Path(store.path.name if form == "npy" else f"{store.path.name}.h5")
    wanted = None if ids is None else [line for line in read_ids(ids) if line]
    with progress_on_demand("exporting features", "rows") as progress:
        return export_features(store, form, target, ids=wanted, overwrite=overwrite, progress=progress)


def push_store(workspace: Workspace, name: str, url: str) -> tuple[str, Transfer]:
    """Send a store to S3-like storage -> its whole name, what was done."""
    full, store = find_store(workspace, name)
    with progress_on_demand("pushing features", "MB", _MEGABYTE) as progress:
        return full, RemoteFeatures(url).mirror(full, store.path).push(progress)


def pull_store(workspace: Workspace, name: str, url: str) -> tuple[str, Transfer]:
    """Fetch a store from S3-like storage -> its whole name, what was done."""
    remote = RemoteFeatures(url)
    known = remote.names()
    found = [full for full in known if name in (full, full.partition("/")[2])]
    if len(found) != 1:
        what = f"several stores called '{name}'" if found else f"no feature store '{name}'"
        raise UsageError(f"{remote.url} has {what}; there are {', '.join(found or known) or 'none'}")
    local = workspace.feature_store(*found[0].split("/", 1))
    with progress_on_demand("pulling features", "MB", _MEGABYTE) as progress:
        return found[0], remote.mirror(found[0], local).pull(progress)


def _folders(workspace: Workspace) -> list[Path]:
    return [path.parent for path in sorted(workspace.features.glob("*/*/zarr.json"))]


def _name_of(folder: Path) -> str:
    return f"{folder.parent.name}/{folder.name}"
