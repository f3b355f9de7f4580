"""The stages of a trained run on a data set of loose files: catalogue, frames, features."""

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
from tasks.framework.stage import Stage, StageContext, StageRun
from tasks.sample_frames import SamplingOptions, sample_frames

Carry = Callable[[StageRun], bool]
"""carries out a job; True if that was work"""


def carry_here(job: StageRun) -> bool:
    """In this process, without Prefect."""
    again = job.stage.again(job.context()) if job.stage.again else ""
    return job.carry_out(force=bool(again))[1]


@dataclass(frozen=True)
class Trained:
    """What a run has that captioning needs: where its results are, and how they were made."""

    workspace: Workspace
    features: Mapping[str, FeatureOptions]
    """those that its captioner reads"""
    sampling: Mapping[str, Sampling]
    """those that these features use"""
    search: SearchOptions
    runtime: Runtime
    captioners: tuple[ArtifactRef, ...]
    """one, or several that speak as an ensemble"""
    text: ArtifactRef
    tagger: ArtifactRef | None = None
    refocused: ArtifactRef | None = None
    """the captioner that finds the key frames which the others read (VRE's third phase)"""

    @property
    def checkpoints(self) -> list[Path]:
        return [self.workspace.root / captioner.uri / "captioner.safetensors" for captioner in self.captioners]


class UserFileStages:
    """The stages on one set of files; each method carries out what it is named for and remembers its jobs."""

    def __init__(self, trained: Trained, carry: Carry) -> None:
        self.trained, self._carry = trained, carry
        self._jobs: list[StageRun] = []

    def catalogue(self, clips: Iterable[UserClip]) -> tuple[Catalogue, StageContext]:
        """The clips, looked at; the extraction is about the last ones."""
        job, _ = self._do(catalogue, UserFilesOptions(clips=tuple(clips)))
        return Catalogue(job.context().folder, ROOT), job.context()

    def extract(self) -> tuple[Path, int]:
        """Make sure that all clips have their features: the extraction's folder, and how many rows had to be made."""
        trained = self.trained
        videos = self._jobs[-1].ref.part("videos")
        inputs = {
            f"frames_{name}": self._do(
                sample_frames, SamplingOptions(sampling=how), f"sample_frames[{name}]", videos=videos
            )[0].ref
            for name, how in trained.sampling.items()
        }
        if trained.tagger:
            inputs["tagger"] = trained.tagger
        options = ExtractOptions(dataset=USER_FILES, features=dict(trained.features), sampling=dict(trained.sampling))
        job, worked = self._do(extract_features, options, videos=videos, **inputs)
        done = job.done() if worked else None
        made = sum(done.summary["extracted"].values()) if done else 0
        if trained.refocused:
            read = {"features": job.ref, "captioner": trained.refocused, "text": trained.text.part("train")}
            job, _ = self._do(find_key_frames, FindingOptions(), **read)
        return job.context().folder, made

    def problems(self) -> list[Problem]:
        """What the stages set aside; `item` is the id of the clip."""
        found = gather_problems(self.trained.workspace, [job.ref for job in self._jobs])
        return [problem for problem in found if problem.quarantined]

    def failures(self, table: Catalogue) -> list[Problem]:
        """What the extraction noted before it ended without a single row."""
        job = self._jobs[-1]
        known = {
            record: why
            for s in job.prepared.values()
            for record, why in job.context().file_cache.failures(s.key).items()
        }
        return [Problem(id, *known[key], quarantined=True) for id, key in table.usable_keys.items() if key in known]

    def discard(self) -> None:
        """Remove the tables that were made; rows of features stay."""
        workspace = self.trained.workspace
        for job in self._jobs:
            with workspace.lock(lock_name(job.stage.name, job.ref.key)):
                workspace.discard(job.stage.name, job.ref.key)

    def _do(self, stage: Stage, options: Options, label: str = "", /, **inputs: ArtifactRef) -> tuple[StageRun, bool]:
        job = stage.job(self.trained.workspace, ROOT, self.trained.runtime, options, inputs, label)
        self._jobs.append(job)
        return job, self._carry(job)
