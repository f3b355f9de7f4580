"""The command `longtake score`: the scores of a file of captions as a table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from flows.cli.options import JsonOption
from flows.cli.printing import out, print_table
from storage.errors import UsageError
from storage.results import FEW

if TYPE_CHECKING:  # importing them would load torch before the first line of help
    from flows.score import Comparison, ScoredFile
    from models.metrics.bootstrap import Difference


def score(
    predictions: Annotated[
        Path, typer.Argument(help="Captions: COCO results, CSV, TSV, JSON lines, or an object of id: caption.")
    ],
    references: Annotated[Path, typer.Argument(help="COCO annotations, JSON lines, or an object of id: [captions].")],
    against: Annotated[Path | None, typer.Option(help="Other captions to compare with, pair by pair.")] = None,
    meteor: Annotated[bool, typer.Option(help="METEOR needs Java and some seconds to load.")] = True,
    training: Annotated[Path | None, typer.Option(help="Training captions: shows the share copied from them.")] = None,
    spice_jars: Annotated[Path | None, typer.Option(help="Folder with the CoreNLP 3.6.0 jars, for SPICE.")] = None,
    items: Annotated[
        Path | None, typer.Option(help="Write the scores of each caption to this .csv or .jsonl file.", metavar="PATH")
    ] = None,
    tokenized: Annotated[bool, typer.Option("--tokenized", help="Words are cut by the PTB tokenizer already.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Score a file of captions: BLEU, METEOR, ROUGE-L, CIDEr and more, with 95 % bootstrap intervals."""
    from flows.score import score_files

    if items is not None and items.suffix not in (".csv", ".jsonl"):
        raise UsageError(f"--items writes CSV or JSON lines: name a file that ends in .csv or .jsonl, not {items}")
    found = score_files(predictions, references, against, meteor, spice_jars, training, tokenized)
    if items is not None:
        found.write_items(items)
    if as_json:
        out.print_json(data=found.to_json())
    else:
        _print_comparison(found)


def _print_comparison(found: Comparison) -> None:
    from models.metrics.corpus import SCORES

    first, *rest = found.scored
    names = [Path(scored.predictions).name for scored in found.scored]
    few = first.items < FEW
    more = ["difference"] if rest else []
    more += [] if few else ["95 % interval", "p"] if rest else ["95 % interval"]
    columns = ["metric", *names, *more]
    table = Table(*map(escape, columns), title=f"{first.items:,} items", title_justify="left")
    for name in (name for name in SCORES if name != "CIDEr-D"):  # the same number as CIDEr
        shown = [_percent(scored.scores[name]) for scored in found.scored]
        if rest:
            table.add_row(name, *shown, *_difference(found.differences.get(name))[: len(more)])
        else:
            table.add_row(name, *shown, *(() if few else [_range(first.intervals.get(name))]))
    print_table(table)
    if few:
        what = "intervals and significance" if rest else "intervals"
        out.print_line(f"[yellow]{first.items:,} are too few items[/] for {what}, which mean something from {FEW} on")
    counts = Table("captions", *map(escape, names))
    for name in first.diversity:
        counts.add_row(name, *(_diversity(name, scored) for scored in found.scored))
    print_table(counts)
    for scored in found.scored if rest else [first]:
        for name, why in scored.not_computed.items():
            of = f" of {Path(scored.predictions).name}" if rest else ""
            out.print_line(f"{name}{of} not computed: {why}", markup=False)
        _print_ids(scored.predictions, scored.missing, "items with references have no caption and were not scored")
        _print_ids(scored.predictions, scored.ignored, "captions have no reference with a word and were not scored")


def _percent(value: float | None) -> str:
    return "not computed" if value is None else f"{100 * value:.2f}"


def _difference(difference: Difference | None) -> tuple[str, str, str]:
    if difference is None:
        return "", "", ""
    return f"{100 * difference.value:+.2f}", _range((difference.low, difference.high)), f"{difference.p:.3f}"


def _range(edges: tuple[float, float] | None, scale: float = 100) -> str:
    return f"{scale * edges[0]:.2f} to {scale * edges[1]:.2f}" if edges else ""


def _diversity(name: str, scored: ScoredFile) -> str:
    value = scored.diversity[name]
    if name == "Copied":
        return f"{100 * value:.1f} %"
    if name == "AvgLen":
        around = f" ({_range(scored.intervals.get(name), 1)})" if scored.items >= FEW else ""
        return f"{value:.2f}{around}"
    return f"{value:,}"


def _print_ids(path: str, ids: Sequence[str], what: str) -> None:
    if ids:
        shown = ", ".join(ids[:5]) + (", ..." if len(ids) > 5 else "")
        out.print_line(f"{path}: {len(ids):,} {what} ({shown})", markup=False)
