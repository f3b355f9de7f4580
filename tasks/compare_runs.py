"""Compare runs: what several runs made of the same or of other data, side by side on one HTML page.

Pictures are those that the runs' reports took; nothing is decoded, captioned or trained here."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import Field

from models.metrics.bootstrap import Difference, compare, compare_recalls
from models.metrics.corpus import SCORES, CaptionScorer
from storage.files.atomic import write_text
from storage.options import Options
from storage.records import ArtifactRef
from storage.results import FEW, CaptionRow, read_captions, read_scores
from storage.text.references import References
from tasks.evaluation.self_retrieval import RANKS
from tasks.framework.feature_access import read_feature_metadata
from tasks.framework.stage import StageContext, StageResult, stage
from tasks.report import run_scores
from tasks.reporting import description, pages
from tasks.reporting.frame_images import NO_IMAGES, read_frame_images
from tasks.reporting.rendering import render_comparison
from tasks.reporting.training_curves import compared_curves, phase_points

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_NOT_COMPARED = ("name", "description", "report", "runtime")


class ComparedRun(Options):
    """One run as its record has it."""

    id: str
    made_at: str
    recipe: dict[str, Any]


class ComparisonOptions(Options):
    """The runs; the others are compared with the first."""

    runs: tuple[ComparedRun, ...] = Field(min_length=2, max_length=len(LETTERS))


@stage(version=2)  # 2: no intervals of few videos, one look of all pages
def compare_runs(
    context: StageContext,
    options: ComparisonOptions,
    text: tuple[ArtifactRef, ...],
    features: tuple[ArtifactRef, ...],
    seeded: tuple[ArtifactRef, ...],
    boosted: tuple[ArtifactRef | None, ...],
    captions: tuple[ArtifactRef, ...],
    scores: tuple[ArtifactRef, ...],
    reports: tuple[ArtifactRef | None, ...],
) -> StageResult:
    """Each input is a tuple in the order of the runs; None where a run has no such result."""
    named = {"text": text, "features": features, "seeding": seeded, "boosting": boosted}
    named |= {"captions": captions, "scores": scores, "report": reports}
    runs = [
        _Run(LETTERS[n], about, {name: context.path(ref) for name, refs in named.items() if (ref := refs[n])})
        for n, about in enumerate(options.runs)
    ]
    page = _page(runs)
    write_text(context.folder / "report.html", render_comparison(page))
    return StageResult(len(page.clips), {"runs": len(runs), "clips": len(page.clips)})


@dataclass(frozen=True)
class _Run:
    """One run and the folders of what it made, opened as they are asked for."""

    label: str
    about: ComparedRun
    folders: Mapping[str, Path]

    @cached_property
    def metrics(self) -> dict[str, Any]:
        return read_scores(self.folders["scores"])

    @cached_property
    def rows(self) -> dict[str, CaptionRow]:
        return {row.video_id: row for row in read_captions(self.folders["captions"])}

    @cached_property
    def texts(self) -> dict[str, list[str]]:
        return References(self.folders["text"]).texts(self.metrics["split"])

    @cached_property
    def scored(self) -> tuple[dict[str, str], dict[str, list[str]]]:
        """The captions that were scored, and their references in tokens."""
        truth = References(self.folders["text"]).sentences(self.metrics["split"])
        captions = {id: row.caption for id, row in self.rows.items() if id in truth}
        return captions, {id: truth[id] for id in captions}

    @property
    def dataset(self) -> str:
        return self.about.recipe["dataset"]["name"]


def _page(runs: Sequence[_Run]) -> pages.ComparisonPage:
    points = {}
    for run in runs:
        phases = {phase: run.folders[phase] for phase in ("seeding", "boosting") if phase in run.folders}
        points[f"{run.label} {run.about.recipe['name']}"] = phase_points(phases)
    clips, notes = _clips(runs), list(dict.fromkeys(note for run in runs for note in description.warnings(run.metrics)))
    if len({run.dataset for run in runs}) > 1:
        notes.append("The runs are on different data sets: their scores cannot be compared with each other.")
    if clips and not any(clip.frames for clip in clips):
        notes.append("There are no pictures: none of the runs has a report that could lend them.")
    return pages.ComparisonPage(
        title=" · ".join(points),
        runs=[_column(run) for run in runs],
        differences=_differences(runs),
        settings=differing([run.about.recipe for run in runs]),
        curves=compared_curves(points),
        clips=clips,
        notes=notes,
    )


def _column(run: _Run) -> pages.RunColumn:
    metrics, recipe = run.metrics, run.about.recipe
    kind = recipe["captioner"]["kind"]
    about, read = read_feature_metadata(run.folders["features"]), read_names(recipe)
    return pages.RunColumn(
        label=run.label,
        title=f"{recipe['name']} on {run.dataset}",
        run_id=run.about.id,
        made_at=run.about.made_at,
        captioner=description.CAPTIONERS.get(kind, kind),
        videos=f"{metrics['videos']:,} {metrics['split']} videos",
        scores={score.name: score for score in run_scores(metrics)},
        other_metrics=dict(description.caption_metrics(metrics)),
        critical_warnings=description.random_weight_warnings({name: about[name] for name in about if name in read}),
    )


def read_names(recipe: Mapping[str, Any]) -> set[str]:
    """Every text in the captioner's section: the names of the features that it reads are among them."""
    values = (value for _, value in _flat(recipe["captioner"], ()))
    return {text for value in values for text in (value if isinstance(value, list) else [value])}


_RETRIEVALS = {"Self-retrieval": "retrieval_places", "Retriever": "retriever_places"}


def _differences(runs: Sequence[_Run]) -> list[pages.RunDifference]:
    """Each run against the first, where both were scored on the same videos with the same references."""
    first, found = runs[0], []
    same = [run for run in runs if run.dataset == first.dataset and run.scored[1] == first.scored[1]]
    meteor = all("METEOR" in run.metrics["corpus"] for run in same)
    scored = []
    if len(same) > 1:
        with CaptionScorer(meteor, None) as scorer:
            pending = [scorer.score(run.scored[0], first.scored[1]) for run in same]
            scored = [finished() for finished in pending]
    for run in runs[1:]:
        if run not in same:
            why = f"not scored on the same videos with the same references as {first.label}"
            found.append(pages.RunDifference(run.label, first.label, why_not=why))
            continue
        each = compare(scored[same.index(run)].scores, scored[0].scores)
        named = [(name, 100.0) for name in SCORES if name in each and name != "CIDEr-D"] + [("AvgLen", 1.0)]
        differences = []
        recalls = {f"{what} {k}": one for what, places in _RETRIEVALS.items() for k, one in _recalls(run, first, places).items()}
        each |= recalls
        for name, s in [*named, *((name, 100.0) for name in recalls)]:
            one = each[name]
            chance = (s * one.low, s * one.high, one.p) if len(run.scored[0]) >= FEW else ()
            differences.append(pages.ScoreDifference(name, s * one.value, *chance))
        found.append(pages.RunDifference(run.label, first.label, differences))
    return found


def _recalls(run: _Run, first: _Run, places: str) -> dict[str, Difference]:
    """R@K -> the paired difference, where both runs ranked the same videos."""
    ours, others = (each.metrics.get(places) or {} for each in (run, first))
    ranks = [rank for rank in RANKS if rank < len(ours)]  # R@5 of 5 videos is always 100 %
    return compare_recalls(ours, others, ranks) if ranks and ours.keys() == others.keys() else {}


def _clips(runs: Sequence[_Run]) -> list[pages.ComparedClip]:
    """Every video that a run captioned, those first of which the runs' captions differ most in CIDEr."""
    videos = {(run.dataset, run.metrics["split"], id) for run in runs for id in run.rows}
    pictures = {run.label: read_frame_images(run.folders["report"]) if "report" in run.folders else {} for run in runs}
    clips = []
    for dataset, split, id in sorted(videos):
        of = [run for run in runs if (run.dataset, run.metrics["split"]) == (dataset, split)]
        ciders = {run.label: run.metrics["per_video"].get(id, {}).get("CIDEr") for run in of if id in run.rows}
        known = {label: 100 * value for label, value in ciders.items() if value is not None}
        top = [label for label, value in known.items() if value == max(known.values())]
        images = next((pictures[run.label][id] for run in of if id in pictures[run.label]), NO_IMAGES)
        first, last = (known.get(run.label) for run in (runs[0], runs[-1]))
        captions = {run.label: run.rows[id].caption for run in of if id in run.rows}
        clips.append(
            pages.ComparedClip(
                video_id=id,
                split=split,
                captions=[
                    pages.RunCaption(each, captions.get(each), known.get(each), top == [each] and len(known) > 1)
                    for each in (run.label for run in runs)
                ],
                references=next((run.texts[id] for run in of if id in run.texts), ()),
                frames=images.frames,
                frame_times=images.times,
                spread=max(known.values()) - min(known.values()) if len(known) > 1 else None,
                gain=last - first if first is not None and last is not None else None,
            )
        )
    return sorted(clips, key=lambda clip: (clip.spread is None, -(clip.spread or 0.0)))


def differing(recipes: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[str | None]]]:
    """(setting, its value in each recipe) of those that are not the same in all; None where a recipe has no such setting."""
    tables = [dict(_flat({k: v for k, v in recipe.items() if k not in _NOT_COMPARED}, ())) for recipe in recipes]
    names = dict.fromkeys(name for table in tables for name in table)
    rows = ((name, [table.get(name, ...) for table in tables]) for name in names)
    return [(name, [_shown(value) for value in values]) for name, values in rows if any(v != values[0] for v in values)]


def _flat(values: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    if isinstance(values, Mapping) and (values or not path):
        for name, value in values.items():
            yield from _flat(value, (*path, str(name)))
    else:
        yield ".".join(path), values


def _shown(value: Any) -> str | None:
    if value is ...:
        return None
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "none"}[value]
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
