"""Captions for your own videos in Python:

from flows.caption import VideoCaptioner

captioner = VideoCaptioner.open("longtake-workspace")  # or VideoCaptioner.load("exported.captioner")
print(captioner("video.mp4"))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from flows.cli.options import DEFAULT_WORKSPACE, existing
from flows.demo import recipe_with_data
from flows.find_run import find_run, newest_run
from flows.pipeline import plan_pipeline
from flows.recipe import Recipe, recorded_recipe
from storage.datasets.user_files import gather_files
from storage.errors import BadInput, BadMedia, MissingFeatures, UsageError
from storage.media.frame_sampling import Uniform
from storage.records import ArtifactRef
from storage.results import read_captions
from storage.runs import RunRecord, load_runs
from storage.text.caption_writers import CaptionLine
from storage.text.references import References
from storage.workspace import Workspace
from tasks.extraction.extractors import ImportedFeature, TaggerFeature, sampling_of
from tasks.extraction.pretrained import fetch_weights
from tasks.framework.runtime import Runtime
from tasks.inference.exported import CaptionerCard, export_captioner, open_exported
from tasks.inference.user_files import Captioned, Cut, ExecuteStage, FileCaptioner, TrainedRun, execute_here


class VideoCaptioner:
    """The captioner of a run that is finished, for any video or image file."""

    def __init__(self, run: RunRecord, trained: TrainedRun, execute: ExecuteStage = execute_here) -> None:
        self.run, self.trained = run, trained
        self._files = FileCaptioner(trained, execute)

    @classmethod
    def open(
        cls, workspace: Path | str, run: str | None = None, retry_quarantined: bool = False, execute: ExecuteStage = execute_here
    ) -> VideoCaptioner:
        """`run` is the id of a run, its beginning, the name of a recipe, or a file that 'longtake export' wrote; without it the
        newest finished run counts that is no variant of a sweep."""
        if run and Path(run).is_file():
            return cls.load(run, workspace, retry_quarantined, execute)
        space = existing(Path(workspace))
        record = choose_run(space, run)
        return cls(record, _trained(space, record, retry_quarantined), execute)

    @classmethod
    def load(
        cls,
        file: Path | str,
        workspace: Path | str = DEFAULT_WORKSPACE,
        retry_quarantined: bool = False,
        execute: ExecuteStage = execute_here,
    ) -> VideoCaptioner:
        """The captioner of a file that 'longtake export' wrote. Features of videos are kept in the workspace, made if new."""
        space = Workspace.open(workspace)
        trained, card = open_exported(space, Path(file), Runtime(retry_quarantined=retry_quarantined))
        at = card.trained_at
        record = RunRecord(card.run, card.name, card.dataset, "", card.recipe, {}, (), at, "done", at, card.scores)
        return cls(record, trained, execute)

    def export(self, target: Path, note: str = "", half: bool = False, frames: int | None = None) -> None:
        """Write the captioner as one file, for another machine. `frames`: how many it takes of a video, if not as in training;
        what was trained on photos can attend to several frames, each of them a photo."""
        run, trained = self.run, self.trained
        card = CaptionerCard(run.recipe_name, run.dataset, run.id, run.finished_at, run.scores, run.recipe, note)
        if frames is not None:
            uniform = {name: how for name, how in trained.sampling.items() if isinstance(how, Uniform)}
            if not uniform:
                raise UsageError(
                    "no sampling of this run takes frames evenly ('kind: uniform'), so their number cannot be changed"
                )
            changed = {name: how.model_copy(update={"frames": frames}) for name, how in uniform.items()}
            trained = replace(trained, sampling={**trained.sampling, **changed})
        export_captioner(trained, card, target, half)

    def __call__(self, file: Path | str) -> str:
        """The caption of one file."""
        found = self.caption([str(file)])
        if found.problems:
            problem = found.problems[0]
            raise BadMedia(problem.kind, f"{problem.item}: {problem.reason}")
        return found.clips[0].caption.caption

    def caption(self, files: Sequence[str], cut: Cut = None, n_best: int = 1, keep_tables: bool = True) -> Captioned:
        """Files, folders and patterns; what is wrong with some is among the problems. See tasks/inference/user_files.py."""
        paths, problems = gather_files(files)
        found = self._files.caption(paths, cut, n_best, keep_tables)
        return Captioned(found.clips, [*problems, *found.problems], found.extracted)


def choose_run(workspace: Workspace, wanted: str | None) -> RunRecord:
    """The newest finished run that has a captioner, among those of this id, name or recipe. A variant of a sweep is one attempt
    among many: it is chosen only if it is named, or if there is nothing else."""
    runs = load_runs(workspace)
    trained = [run for run in runs if run.state == "done" and "captioners" in run.results]
    if not trained:
        raise UsageError(f"no run in {workspace.root} has trained a captioner yet; 'longtake run RECIPE' trains one")
    if wanted:
        return find_run(trained, wanted, "finished")
    return newest_run(workspace, trained)


def evaluated_captions(
    workspace: Workspace, recipe: str, settings: Sequence[str], data: Path | None, kind: str | None
) -> list[CaptionLine]:
    """One line per video, named by its id, in the order of evaluation."""
    loaded = recipe_with_data(workspace, recipe, list(settings), data, kind, draw=False)
    step = plan_pipeline(loaded, workspace).step("caption")
    if step is None or step.find_completion() is None:
        raise UsageError(f"recipe '{loaded.name}' has no captions yet; 'longtake evaluate' computes them")
    return [CaptionLine(row.video_id, 0.0, 0.0, True, row.caption, row.log_prob) for row in read_captions(step.folder)]


def _trained(workspace: Workspace, run: RunRecord, retry_quarantined: bool) -> TrainedRun:
    recipe = recorded_recipe(run)
    assert recipe.captioner is not None  # the run has trained one
    read = [*recipe.captioner.features, *(recipe.words.net.features if recipe.words else ())]
    features = {name: recipe.features[name] for name in read if name in recipe.features}
    for name, feature in features.items():
        if isinstance(feature, ImportedFeature):
            raise BadInput(
                f"run {run.id} ({run.title}) reads features '{name}' that were imported as '{feature.store}'; Longtake "
                "cannot extract them from new videos. Train with features of kind 'backbone' or 'tagger', or import "
                "features of the new videos and run the recipe on them"
            )
    fetch_weights(features.values())
    used = {sampling_of(feature) for feature in features.values()}
    tagged = any(isinstance(feature, TaggerFeature) and feature.weights == "trained" for feature in features.values())
    (text,) = _results(workspace, run, "text")
    return TrainedRun(
        workspace,
        features,
        {name: how for name, how in recipe.sampling.items() if name in used},
        recipe.decoding,
        _runtime(recipe, retry_quarantined),
        tuple(workspace.root / ref.uri / "captioner.safetensors" for ref in _results(workspace, run, "captioners")),
        References(workspace.root / text.uri).vocabulary,
        _results(workspace, run, "tagger")[0] if tagged else None,
        _results(workspace, run, "words_net")[0] if "words_net" in run.results else None,
        (_results(workspace, run, "refocused")[0], text) if "refocused" in run.results else None,
    )


def _runtime(recipe: Recipe, retry_quarantined: bool) -> Runtime:
    """The run's own, here: a cluster or a bucket that served its training is not needed for some files."""
    here = {"runner": "local", "address": "", "feature_bucket": "", "retry_quarantined": retry_quarantined}
    return recipe.runtime.model_copy(update=here)


def _results(workspace: Workspace, run: RunRecord, name: str) -> tuple[ArtifactRef, ...]:
    """Results of the run, by the name that its record keeps them by."""
    refs = []
    for stage, key in run.results[name]:
        done = workspace.done(stage, key)
        if done is None:
            raise MissingFeatures(
                f"the {stage} of run {run.id} is gone from {workspace.root}; run 'longtake run {run.recipe_name}' again"
            )
        refs.append(done.ref)
    return tuple(refs)
