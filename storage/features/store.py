"""The feature store: one folder for one extractor on one data set, open to anyone with plain zarr-python.

    <store>/zarr.json       a Zarr v3 group; its attributes say what made these features
    <store>/<segment>/      immutable segments of rows (segments.py)
    <store>/imports/        what was imported, if anything was (importing.py)

Write with `store.writer()`, read with `store.view()`. Nothing shared is ever changed in place: writers add segments of
their own, compaction adds merged ones before it removes their sources, and a view keeps what it has opened."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import zarr
from zarr.errors import ContainsGroupError
from zarr.storage import LocalStore

from storage.errors import Mismatch, MissingFeatures, StorageError, wrap_os_errors
from storage.features import maintenance
from storage.features.maintenance import Compaction, ProgressCallback
from storage.features.reader import FeatureSegment, SegmentGone
from storage.features.segments import Shape, segment_names
from storage.features.view import View, open_view
from storage.features.writer import PUBLISH_BYTES, PUBLISH_SECONDS, PublishedCallback, SegmentWriter
from storage.files.atomic import sync_file, sync_folder, write_json
from storage.records import Problem

FORMAT = 1
FeatureDType = Literal["float16", "float32"]


class FeatureStore:
    """The features of one extractor for one data set. Cheap to open; all state is on disk."""

    def __init__(self, path: Path, attributes: dict[str, Any]):
        self.path = path
        self.provenance: dict[str, Any] = attributes["provenance"]
        """What made these features; `extractor_key` identifies it."""
        declared = attributes["longtake_features"]
        self.dtype = np.dtype(declared["dtype"]).newbyteorder("<")
        self._feature_shape: Shape | None = None if declared["tail"] is None else tuple(declared["tail"])

    @classmethod
    def create(
        cls, path: Path, provenance: dict[str, Any], feature_shape: Shape | None = None, dtype: FeatureDType = "float16"
    ) -> FeatureStore:
        """Make the store, or open the one that is there if it has the same provenance["extractor_key"].

        feature_shape is the shape of one step, such as (2048,); None leaves it to the first row written."""
        if not isinstance(provenance.get("extractor_key"), str):
            raise ValueError("provenance needs an 'extractor_key'")
        declared = {"format": FORMAT, "tail": None if feature_shape is None else list(feature_shape), "dtype": dtype}
        with wrap_os_errors(path):
            path.mkdir(parents=True, exist_ok=True)
            if not (path / "zarr.json").exists():
                try:
                    attributes = {"longtake_features": declared, "provenance": provenance}
                    zarr.create_group(store=LocalStore(path), attributes=attributes, zarr_format=3)
                    sync_file(path / "zarr.json")
                    sync_folder(path)
                except ContainsGroupError:  # another process made it this moment
                    pass
        store = cls.open(path)
        store._require(provenance["extractor_key"], feature_shape, dtype)
        return store

    @classmethod
    def open(cls, path: Path) -> FeatureStore:
        """The store at `path`; MissingFeatures if there is none."""
        try:
            attributes = json.loads((path / "zarr.json").read_bytes())["attributes"]
            found = attributes["longtake_features"]["format"]
        except (FileNotFoundError, NotADirectoryError):
            remedy = "run 'longtake extract' or 'longtake features import'"
            raise MissingFeatures(f"no feature store at {path}; {remedy}") from None
        except (ValueError, KeyError, TypeError) as error:
            what = f"is damaged or no Longtake feature store ({error!r})"
            raise StorageError(f"{path / 'zarr.json'} {what}; remove {path} and run again") from error
        if found != FORMAT:
            what = f"a feature store of format {found}, this Longtake reads {FORMAT}"
            raise StorageError(f"{path} is {what}; remove it and run again")
        return cls(path, attributes)

    def set_provenance(self, **values: Any) -> None:
        """Say otherwise what makes the rows of a store that has none yet."""
        whole = json.loads((self.path / "zarr.json").read_bytes())
        whole["attributes"]["provenance"] = self.provenance = {**self.provenance, **values}
        with wrap_os_errors(self.path):
            write_json(self.path / "zarr.json", whole)

    @property
    def name(self) -> str:
        """What people call these features: provenance["name"], else the folder's name."""
        return str(self.provenance.get("name", self.path.name))

    @property
    def feature_shape(self) -> Shape | None:
        """The shape of one step; None until the first row is written, if it was not declared."""
        if self._feature_shape is None:
            for name in segment_names(self.path):
                try:
                    segment = FeatureSegment.open(self.path / name)
                except SegmentGone:  # merged into a newer one, which a new view finds
                    return self.view().feature_shape
                if segment is not None and segment.shape:
                    self._feature_shape = segment.feature_shape
                    break
        return self._feature_shape

    @property
    def nbytes(self) -> int:
        """Bytes on disk, dead rows included."""
        return sum(path.stat().st_size for path in self.path.rglob("*") if path.is_file())

    def view(self) -> View:
        """What the store holds now; see View."""
        return open_view(self.path, self.name, self._feature_shape)

    def writer(
        self,
        publish_bytes: int = PUBLISH_BYTES,
        publish_seconds: float = PUBLISH_SECONDS,
        published: PublishedCallback | None = None,
    ) -> SegmentWriter:
        """A writer to use in a `with` block; see SegmentWriter."""
        with wrap_os_errors(self.path):
            return SegmentWriter(self.path, self.feature_shape, self.dtype, publish_bytes, publish_seconds, published)

    def verify(self, progress: ProgressCallback | None = None) -> list[Problem]:
        """Everything wrong with the store; reads every byte."""
        return maintenance.verify(self.path, progress)

    def drop_bad(self) -> int:
        """Take every row out that `verify` finds bad, so that the next run recomputes it -> how many rows or segments."""
        with wrap_os_errors(self.path):
            unreadable = maintenance.delete_unreadable_segments(self.path)
            return unreadable + maintenance.compact(self.view(), self.dtype, None, check=True).bad

    def compact(self, keep: Mapping[str, str] | None = None) -> Compaction:
        """Merge small segments and drop dead rows; with `keep` (id -> key) also every row it does not name.

        Worth calling after an extraction: writers only merge what is their own. Views that are open keep working."""
        with wrap_os_errors(self.path):
            return maintenance.compact(self.view(), self.dtype, keep)

    def digest(self) -> str:
        """The hash of what can be read, whatever was killed, resumed, merged or written in another order."""
        return self.view().digest()

    def _require(self, extractor_key: str, feature_shape: Shape | None, dtype: str) -> None:
        mine = (self.provenance.get("extractor_key"), self.dtype.name, self.feature_shape)
        asked = (extractor_key, dtype, feature_shape if feature_shape is not None else mine[2])
        if mine[:2] != asked[:2] or mine[2] not in (None, asked[2]):
            what = f"features of (extractor key, dtype, shape of a step) {mine}, not of {asked}"
            remedy = "give the other extractor a store of its own, or remove this one"
            raise Mismatch(f"{self.path} holds {what}; {remedy}")
