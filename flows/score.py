"""`longtake score`: caption files in, all metrics out, with intervals and, given a second file, a paired comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from models.scores.bootstrap import Difference, compare, intervals
from models.scores.corpus import CorpusScores, score_corpus
from models.scores.java import JavaFailed, NoJava
from models.scores.meteor import Meteor
from storage.caption_files import read_predictions, read_reference_file
from storage.errors import BadInput
from storage.ptb import ptb_tokenize
from tasks.evaluate import SCORES


@dataclass(frozen=True)
class Scored:
    """The scores of one predictions file."""

    predictions: str
    items: int
    scores: dict[str, float]
    intervals: dict[str, tuple[float, float]]
    not_computed: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    """ids with references and no prediction"""


@dataclass(frozen=True)
class Comparison:
    """One or two scored files; differences are first minus second."""

    scored: list[Scored]
    differences: dict[str, Difference]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def score_files(predictions: Path, references: Path, against: Path | None, meteor: bool = True) -> Comparison:
    """Score caption files after PTB tokenisation. Only items with references count; both files are scored on the same."""
    read = {id: _tokenised(texts) for id, texts in read_reference_file(references).items()}
    truth = {id: texts for id, texts in read.items() if texts}
    files = [predictions, *([against] if against else [])]
    said = [read_predictions(path) for path in files]
    shared = [id for id in truth if all(id in captions for captions in said)]
    if not truth:
        raise BadInput(f"no reference in {references} has a word; there is nothing to compare with")
    if not shared:
        example = next(iter(said[0]))
        raise BadInput(
            f"no item of {predictions} has references in {references}; ids look like '{example}' there "
            f"and '{next(iter(truth))}' here"
        )
    kept = {id: truth[id] for id in shared}
    results = [score_corpus({id: " ".join(ptb_tokenize(captions[id])) for id in shared}, kept) for captions in said]
    extra = _meteor([{id: " ".join(ptb_tokenize(c[id])) for id in shared} for c in said], kept) if meteor else {}
    scored = [
        _scored(path, result, sorted(truth.keys() - captions.keys()), extra.get(n, "not asked for"))
        for n, (path, result, captions) in enumerate(zip(files, results, said, strict=True))
    ]
    return Comparison(scored, compare(results[0], results[1]) if against else {})


def _tokenised(texts: Sequence[str]) -> list[str]:
    """References as words; those without any are no references."""
    return [" ".join(words) for text in texts if (words := ptb_tokenize(text))]


def _meteor(said: Sequence[Mapping[str, str]], truth: Mapping[str, Sequence[str]]) -> dict[int, float | str]:
    """METEOR of every file, or the reason why it was not computed: all other metrics do without Java."""
    try:
        with Meteor() as meteor:
            return {n: meteor.score(captions, truth)[0] for n, captions in enumerate(said)}
    except (NoJava, JavaFailed) as error:
        return dict.fromkeys(range(len(said)), str(error))


def _scored(path: Path, result: CorpusScores, missing: list[str], meteor: float | str) -> Scored:
    scores = {name: result.corpus[name] for name in SCORES}
    not_computed = {}
    if isinstance(meteor, str):
        not_computed["METEOR"] = meteor
    else:
        scores["METEOR"] = meteor
    return Scored(str(path), len(result.per_video), scores, intervals(result), not_computed, missing)


def print_comparison(found: Comparison, out: Console) -> None:
    first, *rest = found.scored
    if rest:
        columns = [
            "metric",
            Path(first.predictions).name,
            Path(rest[0].predictions).name,
            "difference",
            "95 % interval",
            "p",
        ]
    else:
        columns = ["metric", Path(first.predictions).name, "95 % interval"]
    table = Table(*columns, title=f"{first.items} items", title_justify="left")
    for name in first.scores:
        row = [name, *(f"{100 * scored.scores[name]:.2f}" for scored in found.scored)]
        if rest:
            difference = found.differences.get(name)
            row.append(f"{100 * (first.scores[name] - rest[0].scores[name]):+.2f}")
            row += [_range((difference.low, difference.high)), f"{difference.p:.3f}"] if difference else ["", ""]
        else:
            row.append(_range(first.intervals.get(name)))
        table.add_row(*row)
    out.print(table)
    for scored in found.scored:
        for name, why in scored.not_computed.items():
            out.print(f"{name} not computed: {why}", highlight=False)
        if scored.missing:
            shown = ", ".join(scored.missing[:5])
            out.print(
                f"{scored.predictions}: {len(scored.missing)} items with references have no caption ({shown}, ...)"
            )


def _range(edges: tuple[float, float] | None) -> str:
    return f"{100 * edges[0]:.2f} to {100 * edges[1]:.2f}" if edges else ""
