"""Evaluate: the captions of a split against its references, against each other, and against the videos themselves."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from models.captioner import Captioner
from models.decoding.beam_search import SearchOptions
from models.layers.attention import attention_modules, dropping_smallest_weights
from models.metrics.bootstrap import intervals, recall_intervals
from models.metrics.corpus import CaptionScorer, score_corpus
from models.metrics.dense_events import ScoreMeteor
from models.metrics.diversity import diversity
from models.metrics.java import NoJava, find_java
from storage.catalogue import Catalogue
from storage.errors import BadInput, StorageError, UsageError
from storage.files.atomic import write_json
from storage.options import Options
from storage.records import ArtifactRef, Split
from storage.results import read_captions, read_scores
from storage.text.references import References
from storage.text.vocabulary import Vocabulary
from tasks.evaluation.dense_events import score_events
from tasks.evaluation.self_retrieval import RANKS, embedding_ranks, recall_at, self_retrieval
from tasks.framework.feature_access import FeatureAccess
from tasks.framework.progress import progress_bar
from tasks.framework.stage import StageContext, StageResult, stage
from tasks.inference.generate import rank_captions
from tasks.training.loading import embedding_options, load_embedding, open_trained


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
    retriever_seed: int | None = Field(None, ge=0)
    """seed of an embedding that is trained for evaluation alone, as the recipe's section `embedding` says: a second measure, by
    R@K, of whether captions point to their videos, and one that no captioner was rewarded by; none never"""
    dense_events: tuple[Annotated[float, Field(ge=0, le=1)], ...] = ()
    """tIoUs at which captions of segments are also scored as densevid_eval does, against the segments of the val and test splits
    that overlap them; ActivityNet's are 0.3, 0.5, 0.7, 0.9; none never"""
    attention_masking: tuple[Annotated[float, Field(ge=0, le=1)], ...] = ()
    """parts of the attention weights, from 0 to 1, without which the split is captioned again, the smallest first; none never"""


def _java_is_there_now(context: StageContext) -> str:
    """A reason to evaluate again: METEOR is missing for want of a Java, and there is one now."""
    try:
        without = read_scores(context.folder).get("without_java")
    except StorageError:
        return ""
    return "METEOR was not computed for want of Java, which is there now" if without and not _no_java() else ""


def _spice_jars() -> Path:
    """Jars are programs: the machine says which, never a recipe, which may come from anybody."""
    if not (folder := os.environ.get("LONGTAKE_SPICE_JARS")):
        reason = "LONGTAKE_SPICE_JARS does not name the folder with the CoreNLP 3.6.0 jars"
        raise UsageError(f"evaluation.spice is set, but {reason}; set it where stages run, or leave SPICE out")
    return Path(folder).expanduser()


# 2: METEOR of each video, SPICE, diversity, self-retrieval; figures are no longer rounded. 3: 95 % intervals.
# 4: intervals of R@K, an independent retriever, segments by time, attention masked by module, parts of SPICE
@stage(version=4, device=True, rerun_reason=_java_is_there_now)
def evaluate(
    context: StageContext,
    options: EvaluationOptions,
    captions: ArtifactRef,
    text: ArtifactRef,
    captioners: tuple[ArtifactRef, ...],
    features: ArtifactRef,
    videos: ArtifactRef | None = None,
    retriever: ArtifactRef | None = None,
    retriever_features: ArtifactRef | None = None,
) -> StageResult:
    """Several captioners caption as an ensemble; `videos` are read where segments are matched by time, `retriever` where an
    independent embedding ranks them."""
    jars, not_computed = _spice_jars() if options.spice else None, {}
    with CaptionScorer(options.meteor, jars) as scorer:  # Java works in the background all the time
        texts = References(context.path(text))
        references = texts.sentences(options.split)
        everything = {row.video_id: row.caption for row in read_captions(context.path(captions))}
        hypotheses = {id: caption for id, caption in everything.items() if id in references}
        if not hypotheses:
            reason = f"no captioned video of the '{options.split}' split has references"
            raise BadInput(f"{reason}; there is nothing to compare with")
        finished = scorer.score(hypotheses, references)

        ranks, masking = {}, None
        why_not = _no_retrieval(options.self_retrieval, len(everything))
        if options.attention_masking or not why_not:
            net, access = open_trained(context, texts.vocabulary, features, captioners)
        if why_not:
            not_computed["Self-retrieval"] = why_not
        else:
            with progress_bar("self-retrieval", len(everything), "videos") as shown:
                device = context.runtime.torch_device()
                ranks = self_retrieval(net, access.read, texts.vocabulary, everything, device, shown.advance)
        places = {}
        if retriever is not None and retriever_features is not None:
            places = _retriever_ranks(context, retriever, retriever_features, texts.vocabulary, everything)
        if options.attention_masking:
            meteor = scorer.meteor_scores if options.meteor and not _no_java() else None
            masking = mask_attention(net, access, texts, options, sorted(hypotheses), meteor)
            if masking is None:
                not_computed["Attention masking"] = "the captioner has no attention"
        scored = finished()
        not_computed = scored.not_computed | not_computed
        dense = None
        if options.dense_events and videos is not None:
            measure = scorer.meteor_scores if "METEOR" not in not_computed else None
            catalogue = Catalogue(context.path(videos), context.data)
            dense = score_events(catalogue, texts, hypotheses, options.dense_events, measure)

    training = [caption for of_video in texts.sentences("train").values() for caption in of_video]
    metrics = scored.metrics()
    result = {
        "split": options.split,
        "videos": len(hypotheses),
        "corpus": metrics,
        "intervals": intervals(scored.scores),
        "diversity": diversity(everything.values(), training).named(),
        "self_retrieval": recall_at(ranks) if ranks else None,
        "self_retrieval_intervals": recall_intervals(ranks, RANKS) if ranks else None,
        "retriever": recall_at(places) if places else None,
        "retriever_intervals": recall_intervals(places, RANKS) if places else None,
        "attention_masking": masking,
        "dense_events": dense,
        "spice_parts": scored.spice_parts,
        "not_computed": not_computed,
        "without_java": options.meteor and "METEOR" in not_computed and _no_java(),
        "not_captioned": sorted(references.keys() - hypotheses.keys()),
        "per_video": scored.scores.per_video,
        "retrieval_places": ranks,
        "retriever_places": places,
    }
    write_json(context.folder / "scores.json", result)
    return StageResult(len(hypotheses), {name: round(value, 6) for name, value in metrics.items() if value is not None})


def _retriever_ranks(
    context: StageContext, retriever: ArtifactRef, features: ArtifactRef, vocabulary: Vocabulary, captions: Mapping[str, str]
) -> dict[str, int]:
    """video -> its rank for its caption by the cosines of an embedding."""
    path, device = context.path(retriever) / "embedding.safetensors", context.runtime.torch_device()
    access = FeatureAccess.open(context.workspace, context.path(features), embedding_options(path).features)
    net = load_embedding(path, access, vocabulary).to(device)
    ids = access.usable(sorted(captions))
    return embedding_ranks(net, access, vocabulary, {id: captions[id] for id in ids}, device) if ids else {}


def _no_java() -> bool:
    try:
        find_java()
    except NoJava:
        return True
    return False


def _no_retrieval(most: int, videos: int) -> str:
    """Why self-retrieval is not computed; empty if it is."""
    if 0 < most < videos:
        reason = f"it is computed for up to {most:,}, because its cost grows with the square"
        remedy = f"'--set evaluation.self_retrieval={videos}' computes it all the same"
        return f"the split has {videos:,} videos; {reason}: {remedy}"
    return "" if most else "not asked for"


def mask_attention(
    captioner: Captioner,
    access: FeatureAccess,
    references: References,
    options: EvaluationOptions,
    ids: list[str],
    meteor: ScoreMeteor | None = None,
) -> dict[str, Any] | None:
    """G2L's Fig. 6: {"shares": those asked for, "CIDEr": the score of greedy captions without these shares of the attention
    weights, the smallest first, ...}, for all attentions together and, as "modules", for each by itself where there are several;
    None for a captioner without attention. With all weights gone it is not blind: its start state has seen the video."""
    modules = attention_modules(captioner)
    if not modules:
        return None
    wanted = [None, *modules] if len(modules) > 1 else [None]
    with progress_bar("masking attention", len(wanted) * len(options.attention_masking) * len(ids), "videos") as shown:
        curves = {
            over: _masked_scores(captioner, access, references, options, ids, over, meteor, shown.advance) for over in wanted
        }
    together = {"shares": list(options.attention_masking), **curves.pop(None)}
    return together | ({"modules": curves} if curves else {})


def _masked_scores(
    captioner: Captioner,
    access: FeatureAccess,
    references: References,
    options: EvaluationOptions,
    ids: list[str],
    over: str | None,
    meteor: ScoreMeteor | None,
    progress: Callable[[int], None],
) -> dict[str, list[float]]:
    """metric -> its values at each share, with the attention over `over` masked, or all of them."""
    truth, greedy, device = references.sentences(options.split), SearchOptions(width=1), str(next(captioner.parameters()).device)
    curve: dict[str, list[float]] = {}
    for share in options.attention_masking:
        with dropping_smallest_weights(captioner, share, over):
            ranked = rank_captions(captioner, access, references.vocabulary, ids, greedy, device, progress)
        captions = {row.video_id: row.caption for row, *_ in ranked}
        corpus = score_corpus(captions, truth).corpus
        scores = {name: corpus[name] for name in ("CIDEr", "BLEU-4", "ROUGE-L")}
        if meteor is not None:
            scores["METEOR"] = meteor(captions, truth).corpus
        for name, value in scores.items():
            curve.setdefault(name, []).append(value)
    return curve
