"""Sample frames: decide which frames of which video an extractor sees, before anything is decoded. Extraction reads the plan;
'longtake frames' shows it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from storage.catalogue import Catalogue
from storage.errors import BadMedia
from storage.files.atomic import write_parquet
from storage.media.frame_sampling import Indices, Sampling, Seconds, choose_frames
from storage.options import Options
from storage.records import ArtifactRef, Problem
from tasks.extraction.frames import probes_of
from tasks.framework.quarantine import set_aside
from tasks.framework.stage import StageContext, StageResult, stage

_COLUMNS = {"id": pa.string(), "key": pa.string(), "width": pa.int32()}
_SCHEMA = pa.schema(_COLUMNS | {"frames": pa.list_(pa.int32()), "pts": pa.list_(pa.float64())})


class SamplingOptions(Options):
    """One named way of choosing frames."""

    sampling: Sampling


@stage(version=1)
def sample_frames(context: StageContext, options: SamplingOptions, videos: ArtifactRef) -> StageResult:
    catalogue = Catalogue(context.path(videos), context.data)
    rows: list[dict[str, Any]] = []
    problems: list[Problem] = []
    for id, probe in probes_of(context, catalogue, list(catalogue.usable_keys)):
        record = catalogue.records[id]
        try:
            if isinstance(probe, BadMedia):
                raise probe
            chosen = choose_frames(options.sampling, probe.pts, record.segment)
        except BadMedia as bad:
            problems.append(Problem(id, bad.kind, bad.reason, record.source or "", quarantined=True))
            continue
        middle = probe.pts[chosen[:, chosen.shape[1] // 2]]
        row = {"id": id, "key": catalogue.usable_keys[id], "width": chosen.shape[1]}
        rows.append(row | {"frames": chosen.ravel().tolist(), "pts": middle.tolist()})
    write_parquet(context.folder / "plan.parquet", pa.Table.from_pylist(rows, _SCHEMA))
    set_aside(context, problems)
    return StageResult(len(rows), {"videos": len(rows), "quarantined": len(problems)})


class FramePlan:
    """A frame plan as extraction reads it: which frames of which video, and when they are shown."""

    def __init__(self, folder: Path) -> None:
        table = pq.read_table(folder / "plan.parquet").combine_chunks()
        self._rows = {id: row for row, id in enumerate(table["id"].to_pylist())}
        self._widths, self._frames, self._pts = (table[name] for name in ("width", "frames", "pts"))

    def __contains__(self, id: str) -> bool:
        return id in self._rows

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def frames(self, id: str) -> Indices:
        """(P, M) frame numbers: P positions of M frames each."""
        row = self._rows[id]
        numbers = self._frames[row].values.to_numpy(zero_copy_only=False).astype(np.int64)
        return numbers.reshape(-1, self._widths[row].as_py())

    def times(self, id: str) -> Seconds:
        """(P,) seconds of the middle frame of each position."""
        return self._pts[self._rows[id]].values.to_numpy(zero_copy_only=False)
