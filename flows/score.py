"""`longtake score`: caption files in, all metrics out, with intervals and, given a second file, a paired comparison."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from models.metrics.bootstrap import Difference, compare, intervals
from models.metrics.corpus import CaptionScorer
from models.metrics.diversity import diversity
from storage.errors import BadInput
from storage.text.caption_readers import read_predictions, read_reference_file
from storage.text.ptb_tokenizer import ptb_tokenize


@dataclass(frozen=True)
class ScoredFile:
    """The scores of one predictions file."""

    predictions: str
    items: int
    scores: dict[str, float | None]
    """every metric; None if it was not computed"""
    intervals: dict[str, tuple[float, float]]
    diversity: dict[str, float]
    """UniCap, AvgLen, Vocabulary and, where training captions are given, Copied"""
    spice_parts: dict[str, float] = field(default_factory=dict)
    """SPICE of objects, relations, attributes ... alone, where SPICE is computed"""
    not_computed: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    """ids with references and no prediction"""
    ignored: list[str] = field(default_factory=list)
    """ids with a prediction and no reference that has a word"""


@dataclass(frozen=True)
class Comparison:
    """One or two scored files; differences are first minus second."""

    scored: list[ScoredFile]
    differences: dict[str, Difference]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def score_files(
    predictions: Path,
    references: Path,
    against: Path | None = None,
    meteor: bool = True,
    spice_jars: Path | None = None,
    training: Path | None = None,
    tokenized: bool = False,
) -> Comparison:
    """Score caption files after PTB tokenisation, or as they are if they are `tokenized`: cutting words twice can change
    them ("-lrb-"). Only items with references count; both files are scored on the same."""
    cut = list[str] if tokenized else _tokenize
    with CaptionScorer(meteor, spice_jars) as scorer:  # Java loads while files are read and words are cut
        read = {id: cut(texts) for id, texts in read_reference_file(references).items()}
        truth = {id: texts for id, texts in read.items() if any(map(str.strip, texts))}
        if not truth:
            raise BadInput(f"no reference in {references} has a word; there is nothing to compare with")
        files = [predictions, *([against] if against else [])]
        captions_of = [read_predictions(path) for path in files]
        shared = [id for id in truth if all(id in captions for captions in captions_of)]
        if not shared:
            raise BadInput(_nothing_shared(files, captions_of, references, truth))
        tokenized_captions = [dict(zip(shared, cut([captions[id] for id in shared]), strict=True)) for captions in captions_of]
        pending = [scorer.score(captions, {id: truth[id] for id in shared}) for captions in tokenized_captions]
        seen = [text for texts in read_reference_file(training).values() for text in cut(texts)] if training else None
        results = [finished() for finished in pending]
    scored = [
        ScoredFile(
            predictions=str(path),
            items=len(shared),
            scores=result.metrics(),
            intervals=intervals(result.scores),
            diversity=diversity(list(captions.values()), seen).named(),
            spice_parts=result.spice_parts,
            not_computed=result.not_computed,
            missing=sorted(truth.keys() - whole.keys()),
            ignored=sorted(whole.keys() - truth.keys()),
        )
        for path, result, captions, whole in zip(files, results, tokenized_captions, captions_of, strict=True)
    ]
    return Comparison(scored, compare(results[0].scores, results[1].scores) if against else {})


def _tokenize(texts: Sequence[str]) -> list[str]:
    return [" ".join(ptb_tokenize(text)) for text in texts]


def _nothing_shared(
    files: Sequence[Path], captions_of: Sequence[Mapping[str, str]], references: Path, truth: Mapping[str, Sequence[str]]
) -> str:
    for path, captions in zip(files, captions_of, strict=True):
        if not captions.keys() & truth.keys():
            return (
                f"no item of {path} has references in {references}; ids look like '{next(iter(captions))}' there "
                f"and '{next(iter(truth))}' here"
            )
    return f"{files[0]} and {files[1]} caption different items; only items that both have can be compared"
