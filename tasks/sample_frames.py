"""Sample frames: decide which frames of which video an extractor sees, before anything is decoded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from storage.catalogue import Catalogue, problem_table
from storage.errors import BadMedia
from storage.files.atomic import write_parquet
from storage.media.frame_sampling import Sampling, choose_frames
from storage.options import Options
from storage.records import ArtifactRef, Problem
from tasks.extraction.frames import probes_of
from tasks.framework.stage import StageContext, StageResult, stage

_SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("key", pa.string()),
        ("width", pa.int32()),
        ("frames", pa.list_(pa.int32())),
        ("pts", pa.list_(pa.float64())),
    ]
)


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
    write_parquet(context.folder / "quarantine.parquet", problem_table(problems))
    return StageResult(len(rows), {"videos": len(rows), "quarantined": len(problems)})


def read_plan(folder: Path) -> set[str]:
    """The ids of the videos that a plan has frames for."""
    return set(pq.read_table(folder / "plan.parquet", columns=["id"])["id"].to_pylist())
