"""The stages of a trained run on a data set of user files: catalogue, frames, features."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from models.decoding.beam_search import SearchOptions
from storage.catalogue import Catalogue
from storage.datasets.user_files import ROOT, USER_FILES, UserClip, UserFilesOptions
from storage.files.garbage_collection import lock_name
from storage.media.frame_sampling import Sampling
from storage.options import Options
from storage.records import ArtifactRef, Problem
from storage.workspace import Workspace
from tasks.catalogue import catalogue
from tasks.extract_features import ExtractOptions, extract_features
from tasks.extraction.extractors import FeatureOptions
from tasks.find_key_frames import FindingOptions, find_key_frames
from tasks.framework.quarantine import gather_problems
from tasks.framework.runtime import Runtime
from tasks.framework.stage import Input, Stage, StageContext, StageRun
from tasks.sample_frames import SamplingOptions, sample_frames

ExecuteStage = Callable[[StageRun], bool]
"""executes a stage; True if its result had to be computed"""


def execute_here(run: StageRun) -> bool:
    """In this process, without Prefect."""
    return run.execute(force=bool(run.rerun_reason()))[1]


@dataclass(frozen=True)
class TrainedRun:
    """What a run has that captioning needs: where its results are, and how they were made."""

    workspace: Workspace
    features: Mapping[str, FeatureOptions]
    """those that its captioner reads"""
    sampling: Mapping[str, Sampling]
    """those that these features use"""
    search: SearchOptions
    runtime: Runtime
    captioners: tuple[ArtifactRef, ...]
    """one, or several that form an ensemble"""
    text: ArtifactRef
    tagger: ArtifactRef | None = None
    refocused: ArtifactRef | None = None
    """the captioner that finds the key frames which the others read (VRE's third phase)"""

    @property
    def checkpoints(self) -> list[Path]:
        return [self.workspace.root / captioner.uri / "captioner.safetensors" for captioner in self.captioners]


class UserFileStages:
    """The stages on one set of files; each method executes what it is named for and remembers its stage runs."""

    def __init__(self, trained: TrainedRun, execute: ExecuteStage) -> None:
        self.trained, self._execute_stage = trained, execute
        self._runs: list[StageRun] = []

    def catalogue(self, clips: Iterable[UserClip]) -> tuple[Catalogue, StageContext]:
        """Probe the clips; the extraction is about the last ones."""
        run, _ = self._execute(catalogue, UserFilesOptions(clips=tuple(clips)))
        return Catalogue(run.folder, ROOT), run.context()

    def extract(self) -> tuple[Path, int]:
        """Make sure that all clips have their features: the extraction's folder, and how many rows had to be computed."""
        trained = self.trained
        videos = self._runs[-1].ref.part("videos")
        plans = tuple(
            self._execute(sample_frames, SamplingOptions(sampling=how), f"sample_frames[{name}]", videos=videos)[0].ref
            for name, how in trained.sampling.items()
        )
        options = ExtractOptions(dataset=USER_FILES, features=dict(trained.features), sampling=dict(trained.sampling))
        run, computed = self._execute(
            extract_features, options, videos=videos, tagger=trained.tagger, frame_plans=plans
        )
        done = run.find_completion() if computed else None
        extracted = sum(done.summary["extracted"].values()) if done else 0
        if trained.refocused:
            read = {"features": run.ref, "captioner": trained.refocused, "text": trained.text.part("train")}
            run, _ = self._execute(find_key_frames, FindingOptions(), **read)
        return run.folder, extracted

    def problems(self) -> list[Problem]:
        """The quarantined items; `item` is the id of the clip."""
        found = gather_problems(self.trained.workspace, [run.ref for run in self._runs])
        return [problem for problem in found if problem.quarantined]

    def failures(self, table: Catalogue) -> list[Problem]:
        """What the extraction noted before it ended without a single row."""
        run = self._runs[-1]
        cache = run.context().file_cache
        known = {record: why for s in run.prepared.values() for record, why in cache.failures(s.key).items()}
        return [Problem(id, *known[key], quarantined=True) for id, key in table.usable_keys.items() if key in known]

    def discard(self) -> None:
        """Remove the tables that were written; rows of features stay."""
        workspace = self.trained.workspace
        for run in self._runs:
            with workspace.lock(lock_name(run.stage.name, run.ref.key)):
                workspace.discard(run.stage.name, run.ref.key)

    def _execute(
        self, stage: Stage, options: Options, label: str = "", /, **inputs: Input | None
    ) -> tuple[StageRun, bool]:
        run = stage.bind(self.trained.workspace, ROOT, self.trained.runtime, options, inputs, label)
        self._runs.append(run)
        return run, self._execute_stage(run)
