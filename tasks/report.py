"""Report: gather what a run made and found, and write it as one HTML page a person likes to look at."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from pydantic import Field

from models.backbones.zoo import canonical, module_of, open_backbone
from models.captioners.vre.captioner import VreOptions
from models.zoo import CaptionerOptions
from storage.catalogue import Catalogue
from storage.checkpoints import Checkpoint
from storage.features.store import FeatureStore
from storage.files.atomic import write_text
from storage.neighbours import NearDuplicates, Neighbours, near_duplicate_rows
from storage.options import Options
from storage.records import SPLITS, ArtifactRef
from storage.results import CaptionRow, read_captions, read_scores
from storage.runs import load_runs
from storage.text.references import References
from storage.weights import WeightsFolder
from storage.workspace import read_done
from tasks.evaluation.caption_warnings import run_warnings
from tasks.evaluation.near_duplicates import captioned_duplicates
from tasks.extraction.class_names import class_names_of, likeliest
from tasks.framework.feature_access import FeatureAccess
from tasks.framework.quarantine import gather_problems
from tasks.framework.stage import StageContext, StageResult, stage
from tasks.reporting import attention_maps as attention
from tasks.reporting import description
from tasks.reporting.frame_images import NO_IMAGES, FrameImages, decode_frame_images, write_frame_images
from tasks.reporting.pages import DuplicateClips, ReportClip, ReportPage, Score, StageLine
from tasks.reporting.published_scores import BENCHMARKS
from tasks.reporting.rendering import render_report
from tasks.reporting.training_curves import masking_curves, phase_points, run_curves
from tasks.training.loading import captioner_options, load_captioner, load_tagger


class ReportOptions(Options):
    """What the report shows."""

    clips: int = Field(6000, ge=0)
    """most clips in the gallery; of a larger split, evenly chosen from best to worst"""
    frames: int = Field(8, ge=1)
    """frames shown a clip; fewer where there are thousands of clips"""
    width: int = Field(112, ge=16)
    """width of a frame in pixels"""
    near_duplicates: int = Field(12, ge=0)
    """most pairs of near duplicates"""


class PageOptions(Options):
    """What is shown, and the recipe as it was run."""

    shown: ReportOptions
    recipe: dict[str, Any]


_CLASSES = 3  # shown per clip and feature
_CLIP_SCORES = ("CIDEr", "BLEU-4", "ROUGE-L")
SEVERAL = ("frame_plans", "seeded", "boosted", "captioners")
"""inputs of the report that are tuples"""


# 2: diversity, self-retrieval, near duplicates. 3: intervals, the papers' figures, regions, key frames, all test videos.
# 4: pictures are large, heat maps over cells. 5: warnings about captions. 6: no intervals of few videos, one look of all pages,
# the likeliest classes of clips
@stage(version=6)
def report(
    context: StageContext,
    options: PageOptions,
    catalogue: ArtifactRef,
    text: ArtifactRef,
    features: ArtifactRef,
    seeded: tuple[ArtifactRef, ...],
    captioners: tuple[ArtifactRef, ...],
    captions: ArtifactRef,
    scores: ArtifactRef,
    boosted: tuple[ArtifactRef, ...] = (),
    refocused: ArtifactRef | None = None,
    key_frames: ArtifactRef | None = None,
    neighbours: ArtifactRef | None = None,
    tagger: ArtifactRef | None = None,
    words_net: ArtifactRef | None = None,
    words: ArtifactRef | None = None,
    frame_plans: tuple[ArtifactRef, ...] = (),
) -> StageResult:
    """`captioners` are those that captioned; `refocused` is the captioner that found the key frames of VRE's third phase."""
    extraction = (*frame_plans, tagger, features, words_net, words)
    stages = (catalogue, text, *extraction, neighbours, refocused, *seeded, key_frames, *boosted)
    named: dict[str, ArtifactRef | None] = {"catalogue": catalogue, "text": text, "captions": captions, "scores": scores}
    named |= {"extraction": features, "features": key_frames or words or features, "captioner": captioners[0]}
    named |= {"tagger": tagger, "neighbours": neighbours, "seeding": seeded[0] if seeded else None}
    named |= {"boosting": boosted[0] if boosted else None, "words_net": words_net}
    folders = {name: context.path(ref) for name, ref in named.items() if ref is not None}
    refs = tuple(ref for ref in (*stages, captions, scores) if ref is not None)
    run = _Run(context, options.shown, options.recipe, folders, refs)
    page = _page(run)
    write_frame_images(context.folder, run.pictures)
    write_text(context.folder / "report.html", render_report(page))
    return StageResult(len(page.clips), {"clips": len(page.clips)})


@dataclass(frozen=True)
class _Run:
    """What a run left behind, opened as it is asked for."""

    context: StageContext
    shown: ReportOptions
    recipe: dict[str, Any]
    folders: Mapping[str, Path]
    """of what it made; "features" is what the captioner reads: the extraction, or with the key frames beside it"""
    stages: tuple[ArtifactRef, ...]

    @cached_property
    def table(self) -> Catalogue:
        return Catalogue(self.folders["catalogue"], self.context.data)

    @cached_property
    def metrics(self) -> dict[str, Any]:
        return read_scores(self.folders["scores"])

    @cached_property
    def references(self) -> References:
        return References(self.folders["text"])

    @cached_property
    def captioned(self) -> list[CaptionRow]:
        return read_captions(self.folders["captions"])

    @cached_property
    def checkpoint(self) -> Path:
        return self.folders["captioner"] / "captioner.safetensors"

    @cached_property
    def captioner(self) -> CaptionerOptions:
        """As it was trained: after VRE's third phase it reads key frames, which the recipe's captioner does not name."""
        return captioner_options(self.checkpoint)

    @cached_property
    def access(self) -> FeatureAccess:
        return FeatureAccess.for_captioner(self.context.workspace, self.folders["features"], self.captioner)

    @cached_property
    def rows(self) -> list[CaptionRow]:
        """At most `shown.clips`, evenly from best to worst, so that the gallery is no shop window."""
        scores, most = self.metrics["per_video"], self.shown.clips
        ranked = sorted(self.captioned, key=lambda r: (-scores.get(r.video_id, {}).get("CIDEr", 0.0), r.video_id))
        if len(ranked) <= most:
            return ranked
        return [ranked[i] for i in np.linspace(0, len(ranked) - 1, most).round().astype(int)] if most else []

    @cached_property
    def pictures(self) -> dict[str, FrameImages]:
        ids = [row.video_id for row in self.rows if row.video_id in self.table.usable_keys]
        return decode_frame_images(self.context, self.table, ids, self.shown.frames, self.shown.width)


def _words_metadata(run: _Run) -> list[tuple[str, str]]:
    """How well the net that predicts words from features does on validation videos."""
    done = read_done(run.folders["words_net"]) if "words_net" in run.folders else None
    if done is None:
        return []
    found = done.summary
    return [("Words from features", f"{found['words']} words, mAP {100 * found['val_map']:.1f} on validation")]


def _page(run: _Run) -> ReportPage:
    recipe, metrics, about = run.recipe, run.metrics, run.access.about
    kind, done = recipe["dataset"]["kind"], read_done(run.folders["scores"])
    phases = {phase: run.folders[phase] for phase in ("seeding", "boosting", "tagger", "words_net") if phase in run.folders}
    clips, not_shown = _clips(run)
    problems = gather_problems(run.context.workspace, run.stages)
    benchmark = BENCHMARKS.get(kind)
    return ReportPage(
        title=f"{recipe['name']} on {recipe['dataset']['name']}",
        recipe_name=recipe["name"],
        about=recipe["description"].strip(),
        made_at=done.made_at if done else "",
        summary=description.summary(run.table, about, recipe, metrics),
        metadata=description.metadata(run.table, run.references, about, recipe, metrics) + _words_metadata(run),
        critical_warnings=description.random_weight_warnings(about),
        warnings=[*_caption_warnings(run), *description.warnings(metrics)],
        scores=run_scores(metrics),
        curves=run_curves(phase_points(phases)),
        masking=masking_curves(metrics),
        clips=list(clips.values()),
        not_shown=not_shown,
        near_duplicates=_near_duplicates(run, clips),
        training_duplicates=_training_duplicates(run),
        problems=[(p.item, p.kind, p.reason, p.where) for p in problems],
        stages=_stage_lines(run),
        recipe_yaml=yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True),
        published=benchmark.rows if benchmark else (),
        published_note=description.published_note(kind, metrics),
    )


def _caption_warnings(run: _Run) -> list[str]:
    return run_warnings(run.recipe, run.folders["captions"], run.folders["text"], run.folders["captioner"])


def run_scores(metrics: Mapping[str, Any]) -> list[Score]:
    """The scores of an evaluation on the scale of the papers' tables, with their intervals where there are any."""
    note = f"{metrics['videos']:,} {metrics['split']} videos"
    edges = metrics.get("intervals", {})  # evaluations before version 3 and of few videos have none
    intervals = {name: (100 * low, 100 * high) for name, (low, high) in edges.items()}
    scores = {name: 100 * value for name, value in metrics["corpus"].items() if name != "CIDEr-D"}  # the same as CIDEr
    return [Score(name, value, note=note, interval=intervals.get(name)) for name, value in scores.items()]


def _clips(run: _Run) -> tuple[dict[str, ReportClip], list[str]]:
    """video id -> its clip, and what could not be shown."""
    split = run.metrics["split"]
    references, words, per_video = run.references.texts(split), _words_found(run), run.metrics["per_video"]
    classes = _classes_found(run)
    maps, not_shown = _attention_maps(run)
    clips = {}
    for row in run.rows:
        scores = per_video.get(row.video_id, {})
        images, attended = run.pictures.get(row.video_id, NO_IMAGES), maps.get(row.video_id, attention.AttentionMap())
        clips[row.video_id] = ReportClip(
            video_id=row.video_id,
            split=split,
            caption=row.caption,
            log_prob=row.log_prob,
            references=references.get(row.video_id, []),
            scores={name: 100 * scores[name] for name in _CLIP_SCORES if name in scores},
            frames=images.frames,
            frame_times=images.times,
            attention=(row.caption.split(), attended.weights) if attended.weights else None,
            timeline=attended.timeline,
            regions=attended.regions,
            cells=attended.cells,
            key_time=attended.key_time,
            first_caption=attended.first_caption,
            words=words.get(row.video_id, ()),
            classes=classes.get(row.video_id, {}),
        )
    return clips, not_shown


def _attention_maps(run: _Run) -> tuple[dict[str, attention.AttentionMap], list[str]]:
    if not run.rows:
        return {}, []
    vocabulary, device, net = run.references.vocabulary, run.context.runtime.torch_device(), None
    if attention.needs_captioner(run.captioner):
        net = load_captioner(run.checkpoint, run.access, vocabulary).to(device)
    boxes, not_shown = _region_boxes(run)
    seen = _part_of_a_frame(run)
    return attention.find_attention_maps(net, run.captioner, run.access, boxes, seen, vocabulary, run.rows, device), not_shown


def _region_boxes(run: _Run) -> tuple[attention.RegionBoxes | None, list[str]]:
    """The boxes of the regions that the captioner attends to; if they are not known, why."""
    name = attention.region_feature(run.captioner, run.access)
    if name is None or isinstance(run.captioner, VreOptions):
        return None, []
    feature = run.recipe["features"][name]
    if feature.get("output", "").startswith("grid"):
        cells = attention.grid_cells(int(run.access.about[name]["shape"][0]))
        return (attention.RegionBoxes(cells), []) if cells else (None, [f"The cells of '{name}' are no square grid: no boxes."])
    beside = attention.boxes_feature(run.recipe["features"], name)
    if beside is None:
        return None, [
            f"The boxes of the regions '{name}' were not kept, so what words look at within a frame cannot be drawn; "
            f"add a feature like '{name}' with 'output: boxes' to the recipe."
        ]
    return attention.RegionBoxes(boxes=FeatureAccess.open(run.context.workspace, run.folders["extraction"], (beside,))), []


def _part_of_a_frame(run: _Run) -> tuple[float, float] | None:
    """Width and height of the middle part that the captioner's grid covers, in short sides of a frame; None: all of it. Most
    image nets see the middle alone."""
    name = attention.region_feature(run.captioner, run.access)
    feature = run.recipe["features"].get(name, {})
    if feature.get("kind") != "backbone" or not feature.get("output", "").startswith("grid"):
        return None
    known = WeightsFolder().find(canonical(feature["net"])) if module_of(feature["net"]) == "hf" else None
    fit = open_backbone(feature["net"], known.path if known else None, 0).preprocessing
    return (fit.crop[0] / fit.short, fit.crop[1] / fit.short) if fit and fit.crop and fit.short else None


def _words_found(run: _Run) -> dict[str, list[tuple[str, float]]]:
    """video id -> the words that the tagger finds likeliest in it, where a tagger was trained."""
    named = run.recipe["features"]
    trained = {name: named[name] for name in run.access.names if named.get(name, {}).get("weights") == "trained"}
    kept = [name for name, made in trained.items() if made.get("over_time") == "keep" and not made.get("only")]
    name = next((name for name in kept if trained[name].get("output") in ("rows", "words")), None)
    if name is None or "tagger" not in run.folders:
        return {}
    checkpoint = Checkpoint.load(run.folders["tagger"] / "tagger.safetensors")
    net, words, found = load_tagger(checkpoint), checkpoint.values["words"], {}
    for row in run.rows:  # one by one: clips of other lengths would be padded with positions that were never seen
        rows = run.access.read([row.video_id])[0][name]
        with torch.inference_mode():
            whole = trained[name]["output"] == "words"
            probabilities = rows[0, 0] if whole else torch.sigmoid(net.word_logits(rows))[0]
            likely = probabilities.topk(min(8, len(words)))
        pairs = zip(likely.indices.tolist(), likely.values.tolist(), strict=True)
        found[row.video_id] = [(words[n], probability) for n, probability in pairs]
    return found


def _classes_found(run: _Run) -> dict[str, dict[str, list[tuple[str, float]]]]:
    """video id -> feature -> its likeliest classes, for the features of class probabilities whose names are known."""
    found: dict[str, dict[str, list[tuple[str, float]]]] = {row.video_id: {} for row in run.rows}
    for name in (name for name, feature in run.recipe["features"].items() if feature.get("output") == "classes"):
        access = FeatureAccess.open(run.context.workspace, run.folders["extraction"], (name,))
        names = class_names_of(FeatureStore.open(run.context.workspace.features / access.about[name]["store"]))
        for id in access.usable(list(found)) if names else ():
            rows, valid = access.read([id])
            if valid[name].any():
                found[id][name] = likeliest(rows[name][0].numpy(), names, _CLASSES)
    return found


def _near_duplicates(run: _Run, clips: Mapping[str, ReportClip]) -> list[DuplicateClips]:
    """The captioned videos that are most alike, by the feature that neighbours are found by, else the captioner's first."""
    feature = (run.recipe.get("neighbours") or {}).get("feature") or run.captioner.features[0]
    access = FeatureAccess.open(run.context.workspace, run.folders["features"], (feature,))
    references = run.references.sentences(run.metrics["split"])
    captions = {row.video_id: row.caption for row in run.captioned if row.video_id in clips}
    most, device = run.shown.near_duplicates, run.context.runtime.torch_device()
    pairs = captioned_duplicates(access, feature, captions, references, most, device)
    return [DuplicateClips(clips[first], clips[second], *found) for (first, second), found in pairs]


def _training_duplicates(run: _Run) -> list[tuple[str, NearDuplicates]]:
    """(split, pair) of the videos closest to training videos, where the recipe looks for nearest neighbours."""
    if "neighbours" not in run.folders:
        return []
    table = Neighbours.open(run.folders["neighbours"])
    captions = {id: texts for split in SPLITS for id, texts in run.references.texts(split).items()}
    most = run.shown.near_duplicates
    return [(split, pair) for split in SPLITS for pair in near_duplicate_rows(table, captions, most, split)]


def _stage_lines(run: _Run) -> Sequence[StageLine]:
    """The stages that this page was made from; those are reused that were done before the newest run with these scores began."""
    runs = load_runs(run.context.workspace)
    past = next((past for past in runs if ("evaluate", run.folders["scores"].name) in past.stages.values()), None)
    labels = {key: label for label, (_, key) in past.stages.items()} if past else {}
    lines = []
    for ref in run.stages:
        done = read_done(run.context.path(ref))
        if done is not None:
            state = "ran" if past is None or done.made_at >= past.started_at else "reused"
            rows = done.summary.get("extracted") or {}
            note = ", ".join(f"{count:,} rows of '{of}' made" for of, count in rows.items())
            label = labels.get(ref.key, done.stage)
            lines.append(StageLine(label, state, done.seconds, done.ref.count, ref.key, done.made_at, note))
    return lines
