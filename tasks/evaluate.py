"""Evaluate: the captions of a split against its references, against each other, and against the videos themselves."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from pydantic import Field

from models.metrics.bootstrap import intervals
from models.metrics.corpus import score_captions
from models.metrics.diversity import diversity
from models.metrics.java import NoJava, find_java
from storage.errors import BadInput, StorageError, UsageError
from storage.files.atomic import write_json
from storage.options import Options
from storage.records import ArtifactRef, Split
from storage.results import read_captions, read_scores
from storage.text.references import References
from tasks.evaluation.attention_masking import attention_masking
from tasks.evaluation.self_retrieval import recall_at, self_retrieval
from tasks.framework.progress import progress_bar
from tasks.framework.stage import StageContext, StageResult, stage
from tasks.training.loading import open_trained


class EvaluationOptions(Options):
    """What is scored."""

    split: Split = "test"
    """the split whose captions are made and scored"""
    meteor: bool = True
    """whether METEOR is computed; it needs Java, which pip brings, and some seconds to load"""
    spice: bool = False
    """whether SPICE is computed, by the CoreNLP 3.6.0 jars in the folder that LONGTAKE_SPICE_JARS names on the machine"""
    self_retrieval: int = Field(1000, ge=0)
    """self-retrieval is computed for splits of at most so many videos, because its cost grows with their square; 0 never"""
    attention_masking: tuple[Annotated[float, Field(ge=0, le=1)], ...] = ()
    """parts of the attention weights, from 0 to 1, without which the split is captioned again, the smallest first; none never"""


def _java_is_there_now(context: StageContext) -> str:
    """A reason to evaluate again: METEOR is missing for want of a Java, and there is one now."""
    try:
        if not read_scores(context.folder).get("without_java"):
            return ""
        find_java()
    except (StorageError, NoJava):
        return ""
    return "METEOR was not computed for want of Java, which is there now"


def _spice_jars() -> Path:
    """Jars are programs: the machine says which, never a recipe, which may come from anybody."""
    if not (folder := os.environ.get("LONGTAKE_SPICE_JARS")):
        raise UsageError(
            "evaluation.spice is set, but LONGTAKE_SPICE_JARS does not name the folder with the CoreNLP 3.6.0 jars; set it "
            "where stages run, or leave SPICE out"
        )
    return Path(folder).expanduser()


# 2: METEOR of each video, SPICE, diversity, self-retrieval; figures are no longer rounded. 3: 95 % intervals
@stage(version=3, device=True, rerun_reason=_java_is_there_now)
def evaluate(
    context: StageContext,
    options: EvaluationOptions,
    captions: ArtifactRef,
    text: ArtifactRef,
    captioners: tuple[ArtifactRef, ...],
    features: ArtifactRef,
) -> StageResult:
    """Several captioners caption as an ensemble."""
    texts = References(context.path(text))
    references = texts.sentences(options.split)
    everything = {row.video_id: row.caption for row in read_captions(context.path(captions))}
    hypotheses = {id: caption for id, caption in everything.items() if id in references}
    if not hypotheses:
        raise BadInput(
            f"no captioned video of the '{options.split}' split has references; there is nothing to compare with"
        )
    jars = _spice_jars() if options.spice else None
    (scored,) = score_captions([hypotheses], references, options.meteor, jars)
    not_computed = dict(scored.not_computed)

    ranks: dict[str, int] = {}
    if why := _no_retrieval(options.self_retrieval, len(everything)):
        not_computed["Self-retrieval"] = why
    else:
        net, access = open_trained(context, texts.vocabulary, features, captioners)
        with progress_bar("self-retrieval", len(everything), "videos") as shown:
            device = context.runtime.torch_device()
            ranks = self_retrieval(net, access.read, texts.vocabulary, everything, device, shown.advance)

    masking = None
    if options.attention_masking:
        masking = _mask(context, options, captioners, features, texts, sorted(hypotheses))
        if masking is None:
            not_computed["Attention masking"] = "the captioner has no attention"

    training = [caption for of_video in texts.sentences("train").values() for caption in of_video]
    metrics = scored.metrics()
    result = {
        "split": options.split,
        "videos": len(hypotheses),
        "corpus": metrics,
        "intervals": intervals(scored.scores),
        "diversity": diversity(everything.values(), training).named(),
        "self_retrieval": recall_at(ranks) if ranks else None,
        "attention_masking": masking,
        "not_computed": not_computed,
        "without_java": options.meteor and "METEOR" in not_computed and _no_java(),
        "not_captioned": sorted(references.keys() - hypotheses.keys()),
        "per_video": scored.scores.per_video,
        "retrieval_places": ranks,
    }
    write_json(context.folder / "scores.json", result)
    return StageResult(len(hypotheses), {name: round(value, 6) for name, value in metrics.items() if value is not None})


def _no_java() -> bool:
    try:
        find_java()
    except NoJava:
        return True
    return False


def _no_retrieval(most: int, videos: int) -> str:
    """Why self-retrieval is not computed; empty if it is."""
    if most == 0:
        return "not asked for"
    if videos > most:
        return (
            f"the split has {videos:,} videos; it is computed for up to {most:,}, because its cost grows with the square: "
            f"'--set evaluation.self_retrieval={videos}' computes it all the same"
        )
    return ""


def _mask(
    context: StageContext,
    options: EvaluationOptions,
    captioners: tuple[ArtifactRef, ...],
    features: ArtifactRef,
    references: References,
    ids: list[str],
) -> dict[str, list[float]] | None:
    """The scores of the captions without the smallest attention weights; None for a captioner without attention."""
    net, access = open_trained(context, references.vocabulary, features, captioners)
    shares, device = options.attention_masking, context.runtime.torch_device()
    with progress_bar("masking attention", len(shares) * len(ids), "videos") as shown:
        return attention_masking(net, access, references, options.split, ids, shares, device, shown.advance)
