"""`longtake score`: caption files in, all metrics out, with intervals and, given a second file, a paired comparison."""

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any

from models.metrics.bootstrap import Difference, compare, intervals
from models.metrics.corpus import CaptionScorer
from models.metrics.diversity import diversity
from storage.errors import BadInput, wrap_os_errors
from storage.files.atomic import write_text
from storage.files.sanitising import no_formula, no_formula_path
from storage.results import FEW
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
    items: list[dict[str, Any]] = field(default_factory=list)
    """one for each caption: file, id, caption and its scores"""

    def to_json(self) -> dict[str, Any]:
        """Of few items without intervals and significance."""
        found = {name: value for name, value in asdict(self).items() if name != "items"}
        if self.scored[0].items < FEW:
            found["scored"] = [scored | {"intervals": {}} for scored in found["scored"]]
            found["differences"] = {name: {"value": one.value} for name, one in self.differences.items()}
        return found

    def write_items(self, path: Path) -> None:
        """The scores of each caption as CSV or JSON lines, by the file's ending."""
        if path.suffix == ".jsonl":
            text = "".join(json.dumps(item, ensure_ascii=False) + "\n" for item in self.items)
        else:
            out = StringIO()
            table = csv.DictWriter(out, list(self.items[0]), lineterminator="\n")
            table.writeheader()
            safe = {"file": no_formula_path, "id": no_formula, "caption": no_formula}
            table.writerows({name: safe.get(name, str)(value) for name, value in item.items()} for item in self.items)
            text = out.getvalue()
        with wrap_os_errors(path):
            write_text(path, text)


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
    items = [
        {"file": str(path), "id": id, "caption": captions[id], **result.scores.per_video[id]}
        for path, result, captions in zip(files, results, tokenized_captions, strict=True)
        for id in sorted(captions)
    ]
    return Comparison(scored, compare(results[0].scores, results[1].scores) if against else {}, items)


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
