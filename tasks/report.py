"""Report: gather what a run made and found, and write it as one HTML page a person likes to look at."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from typing import Any

import numpy as np
import torch
import yaml
from PIL import Image
from pydantic import Field, TypeAdapter

from models.zoo import CaptionerOptions
from storage.atomic import write_text
from storage.catalogue import Catalogue
from storage.checkpoints import Checkpoint
from storage.errors import BadMedia
from storage.neighbours import Neighbours, Twins, near_twins
from storage.options import Options
from storage.records import SPLITS, ArtifactRef
from storage.references import References
from storage.results import CaptionRow, read_captions, read_jsonl, read_scores
from storage.sampling import Uniform
from storage.workspace import read_done
from tasks.feature_access import FeatureAccess
from tasks.frames import read_frames
from tasks.problems import gather_problems
from tasks.progress import meter
from tasks.report_page import Clip, Curve, ReportPage, Score, StageLine, render_report
from tasks.stage import Made, Work, stage
from tasks.train_tagger import load_tagger


class ReportOptions(Options):
    """What the report shows."""

    clips: int = Field(240, ge=0)
    """most clips in the gallery; of a larger split, evenly chosen from best to worst"""
    frames: int = Field(8, ge=1)
    """frames shown a clip"""
    width: int = Field(112, ge=16)
    """width of a frame in pixels"""
    twins: int = Field(12, ge=0)
    """most pairs of near twins a split, where the recipe looks for nearest neighbours"""


_DIVERSITY = {
    "UniCap": "Different captions (UniCap)",
    "AvgLen": "Words a caption (AvgLen)",
    "Vocabulary": "Words used in captions",
    "Copied": "Captions copied from training",
}


class PageOptions(Options):
    """What is shown, and the recipe as it was run."""

    shown: ReportOptions
    recipe: dict[str, Any]


@stage(version=2)  # 2: diversity, self-retrieval, near twins
def report(
    work: Work,
    options: PageOptions,
    catalogue: ArtifactRef,
    text: ArtifactRef,
    features: ArtifactRef,
    seeded: ArtifactRef,
    captions: ArtifactRef,
    scores: ArtifactRef,
    **others: ArtifactRef,
) -> Made:
    refs = [catalogue, text, *others.values(), features, seeded, captions, scores]
    table, figures = Catalogue(work.path(catalogue), work.data), read_scores(work.path(scores))
    rows = _chosen(read_captions(work.path(captions)), figures["per_video"], options.shown.clips)
    net = TypeAdapter(CaptionerOptions).validate_python(options.recipe["captioner"])
    access = FeatureAccess.for_captioner(work.workspace, work.path(features), net)
    about = access.about
    words = _words_found(work, access, options.recipe, [row.video_id for row in rows], others.get("tagger"))
    references = References(work.path(text))
    done = read_done(work.path(scores))
    page = ReportPage(
        title=f"{options.recipe['name']} on {options.recipe['dataset']['name']}",
        recipe_name=options.recipe["name"],
        about=options.recipe["about"].strip(),
        made_at=done.made_at if done else "",
        facts=_facts(table, references, about, options.recipe, figures),
        warnings=_warnings(about, figures),
        scores=[
            Score(name, 100 * value, note=f"{figures['videos']} {figures['split']} videos")
            for name, value in figures["corpus"].items()
        ],
        curves=_curves(work, seeded, others.get("boosted"), others.get("tagger")),
        clips=_clips(work, table, references.texts(figures["split"]), rows, figures, words, options.shown),
        twins=_twins(work, references, others.get("neighbours"), options.shown.twins),
        problems=[(p.item, p.kind, p.reason, p.where) for p in gather_problems(work.workspace, refs)],
        stages=[line for ref in refs if (line := _stage_line(work, ref))],
        recipe_yaml=yaml.safe_dump(options.recipe, sort_keys=False, allow_unicode=True),
    )
    write_text(work.folder / "report.html", render_report(page))
    return Made(len(page.clips), {"clips": len(page.clips)})


def _chosen(rows: list[CaptionRow], per_video: dict[str, dict[str, float]], most: int) -> list[CaptionRow]:
    """At most `most` clips, evenly from best to worst, so that the gallery is no shop window."""
    ranked = sorted(rows, key=lambda row: (-per_video.get(row.video_id, {}).get("CIDEr", 0.0), row.video_id))
    if len(ranked) <= most:
        return ranked
    return [ranked[i] for i in np.linspace(0, len(ranked) - 1, most).round().astype(int)] if most else []


def _facts(
    table: Catalogue, references: References, about: dict[str, Any], recipe: dict[str, Any], figures: dict[str, Any]
) -> list[tuple[str, str]]:
    sizes = ", ".join(f"{len(table.ids(split)):,} {split}" for split in SPLITS)
    how = recipe["decoding"]
    facts = [
        ("Data set", f"{recipe['dataset']['name']} ({recipe['dataset']['kind']})"),
        ("Videos", sizes),
        ("Captions", f"{table.captions.num_rows:,}"),
        ("Vocabulary", f"{len(references.vocabulary):,} words"),
        ("Captioner", recipe["captioner"]["kind"]),
        ("Search", "greedy" if how["width"] == 1 else f"beam of {how['width']}"),
    ]
    facts += [(f"Features '{name}'", f"{info['words']}; {info['size']} numbers a row") for name, info in about.items()]
    facts += [(f"{name} not computed", why) for name, why in figures["not_computed"].items()]
    for name, value in figures["diversity"].items():
        facts.append((_DIVERSITY.get(name, name), f"{100 * value:.1f} %" if name == "Copied" else f"{value:,.4g}"))
    facts += [(f"Self-retrieval {name}", f"{100 * v:.1f} %") for name, v in (figures["self_retrieval"] or {}).items()]
    if figures["not_captioned"]:
        facts.append(("Not captioned", f"{len(figures['not_captioned'])} videos of the split have no features"))
    return facts


def _warnings(about: dict[str, Any], figures: dict[str, Any]) -> list[str]:
    warnings = [
        f"The features '{name}' come from random weights: they try the plumbing, and the scores say nothing about a model."
        for name, info in about.items()
        if info["random_weights"]
    ]
    if figures["videos"] < 30:
        warnings.append(
            f"Only {figures['videos']} videos were scored; such scores vary a lot from one set to the next."
        )
    return warnings


def _curves(work: Work, seeded: ArtifactRef, boosted: ArtifactRef | None, tagger: ArtifactRef | None) -> list[Curve]:
    points = read_jsonl(work.path(seeded) / "curves.jsonl")
    curves = [
        Curve(
            "Seeding: loss", "epoch", "cross-entropy a word", {"training": [(p["epoch"], p["total"]) for p in points]}
        ),
        Curve(
            "Seeding: validation",
            "epoch",
            "CIDEr",
            {"CIDEr": [(p["epoch"], p["val_cider"]) for p in points if "val_cider" in p]},
        ),
    ]
    if boosted:
        points = read_jsonl(work.path(boosted) / "curves.jsonl")
        for title, unit, name in (("reward", "reward a sample", "reward"), ("validation", "CIDEr", "val_cider")):
            line = [(p["epoch"], p[name]) for p in points if name in p]
            curves.append(Curve(f"Boosting: {title}", "epoch", unit, {unit: line}))
    if tagger:
        words = read_jsonl(work.path(tagger) / "curves.jsonl")
        curves.append(
            Curve("Word tagger: loss", "epoch", "loss a word", {"training": [(p["epoch"], p["loss"]) for p in words]})
        )
    return curves


def _clips(
    work: Work,
    table: Catalogue,
    references: dict[str, list[str]],
    rows: Sequence[CaptionRow],
    figures: dict[str, Any],
    words: dict[str, list[tuple[str, float]]],
    shown: ReportOptions,
) -> list[Clip]:
    frames = _thumbnails(work, table, [row.video_id for row in rows if row.video_id in table.usable_keys], shown)
    clips = []
    for row in rows:
        images, times = frames.get(row.video_id, ([], []))
        attention = (row.caption.split(), row.attention) if row.attention else None
        clips.append(
            Clip(
                video_id=row.video_id,
                split=figures["split"],
                caption=row.caption,
                log_prob=row.log_prob,
                references=references.get(row.video_id, []),
                scores=_percent(figures["per_video"].get(row.video_id, {})),
                frames=images,
                frame_times=times,
                attention=attention,
                words=words.get(row.video_id, ()),
            )
        )
    return clips


def _percent(scores: dict[str, float]) -> dict[str, float]:
    """The few scores a clip is shown with, on the scale that papers use."""
    return {name: 100 * scores[name] for name in ("CIDEr", "BLEU-4", "ROUGE-L") if name in scores}


def _words_found(
    work: Work, access: FeatureAccess, recipe: dict[str, Any], ids: Sequence[str], tagger: ArtifactRef | None
) -> dict[str, list[tuple[str, float]]]:
    """video id -> the words that the tagger finds likeliest in it, where a tagger was trained."""
    trained = {n: recipe["features"][n] for n in access.names if recipe["features"][n].get("weights") == "trained"}
    fits = ("rows", "words")
    names = [n for n, f in trained.items() if f.get("output") in fits and f.get("over_time") == "keep"]
    if tagger is None or not names:
        return {}
    whole = trained[names[0]]["output"] == "words"
    checkpoint = Checkpoint.load(work.path(tagger) / "tagger.safetensors")
    net, found = load_tagger(checkpoint).eval(), {}
    words = checkpoint.values["words"]
    for id in ids:  # one by one: clips of other lengths would be padded with positions that were never seen
        rows, _ = access.read([id])
        with torch.inference_mode():
            chances = rows[names[0]][0, 0] if whole else torch.sigmoid(net.word_logits(rows[names[0]]))[0]
            likely = chances.topk(min(8, len(words)))
        found[id] = [(words[n], p) for n, p in zip(likely.indices.tolist(), likely.values.tolist(), strict=True)]
    return found


def _thumbnails(
    work: Work, table: Catalogue, ids: list[str], shown: ReportOptions
) -> dict[str, tuple[list[bytes], list[float]]]:
    """video id -> small JPEG frames and their times; a video that cannot be decoded any more is left without."""
    found = {}
    sampling = {"shown": Uniform(frames=shown.frames)}
    with meter("pictures for the report", len(ids), "videos") as progress:
        for id, answer in read_frames(work, table, dict.fromkeys(ids, sampling)):
            progress.advance()
            if not isinstance(answer, BadMedia):
                sampled = answer["shown"]
                found[id] = ([_jpeg(image, shown.width) for image in sampled.images[:, 0]], sampled.pts.tolist())
    return found


def _jpeg(image: np.ndarray, width: int) -> bytes:
    height = max(1, round(image.shape[0] * width / image.shape[1]))
    file = BytesIO()
    Image.fromarray(image).resize((width, height), Image.Resampling.LANCZOS).save(file, "JPEG", quality=82)
    return file.getvalue()


def _twins(work: Work, references: References, neighbours: ArtifactRef | None, most: int) -> list[tuple[str, Twins]]:
    """(split, pair) of the closest videos, where the recipe looks for nearest neighbours."""
    if neighbours is None:
        return []
    table = Neighbours.open(work.path(neighbours))
    captions = {id: told for split in SPLITS for id, told in references.texts(split).items()}
    return [(split, pair) for split in SPLITS for pair in near_twins(table, captions, most, split)]


def _stage_line(work: Work, ref: ArtifactRef) -> StageLine | None:
    done = read_done(work.path(ref))
    if done is None:
        return None
    return StageLine(done.stage, "done", done.seconds, done.ref.count, ref.key)
