"""The table of a sweep: mean and standard deviation of every variant, paired differences to the first, as a table and files."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import nan
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from flows.sweep.definition import Sweep
from storage.files.atomic import write_json, write_text
from storage.workspace import Workspace
from tasks.reporting.published_scores import ABLATIONS

SHOWN = ("CIDEr", "BLEU-4", "METEOR", "ROUGE-L", "SPICE", "R@1", "R@5", "R@10", "UniCap", "AvgLen", "val CIDEr")
PAPER = "paper "
"""what opens the heading of a column of the paper's figures, beside ours"""
MAIN_METRIC = "CIDEr"
"""what decides which variant is called best"""
_IN_PERCENT = ("CIDEr", "BLEU", "METEOR", "ROUGE", "SPICE", "R@", "val CIDEr", "Copied")  # shown times 100


@dataclass(frozen=True)
class SweepResult:
    """The result of one run of a sweep."""

    variant: str
    seed: int
    state: str
    """done or failed"""
    reason: str = ""
    """why it failed"""
    metrics: dict[str, float] = field(default_factory=dict)
    """scores from 0 to 1 (CIDEr to 10), self-retrieval, diversity, and the validation CIDEr of the epoch that was chosen"""
    seconds: float = 0.0
    """of training the captioner, whenever that was"""
    quarantined: int = 0
    """videos that were set aside"""
    evaluation: str = ""
    """where the scores lie in the workspace"""

    def to_json(self) -> dict[str, Any]:
        return _to_json(self)


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation of some values. The standard deviation is that of a sample (n - 1); one value has none."""

    mean: float
    std: float | None
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(fmean(values), stdev(values) if len(values) > 1 else None, len(values))

    def shown(self, scale: float = 1.0, sign: str = "", digits: int = 1) -> str:
        spread = "" if self.std is None else f"±{scale * self.std:.{digits}f}"
        return f"{scale * self.mean:{sign}.{digits}f}{spread}"


@dataclass(frozen=True)
class VariantRow:
    """One variant. `differences` are to the first variant, seed by seed; `better` counts the seeds with more CIDEr."""

    variant: str
    settings: tuple[str, ...]
    metrics: dict[str, Spread]
    differences: dict[str, Spread]
    better: int
    failed: int
    seconds: float
    paper: Mapping[str, float] = field(default_factory=dict)
    """what the paper's table says of it, on the paper's data set and scale"""
    best: bool = False


def variant_rows(sweep: Sweep, results: Sequence[SweepResult]) -> list[VariantRow]:
    """The table of a sweep, also of one that is half done."""
    done = {variant.name: [r for r in results if r.variant == variant.name and r.state == "done"] for variant in sweep.variants}
    first = {result.seed: result.metrics for result in done[sweep.variants[0].name]}
    rows = []
    for n, variant in enumerate(sweep.variants):
        mine = done[variant.name]
        pairs = [(result.metrics, first[result.seed]) for result in mine if n and result.seed in first]
        metrics = _spreads([result.metrics for result in mine])
        changes = [{name: own[name] - base[name] for name in own.keys() & base.keys()} for own, base in pairs]
        better = sum(change.get(MAIN_METRIC, nan) > 0 for change in changes)
        failed = sum(r.variant == variant.name and r.state == "failed" for r in results)
        seconds = fmean([result.seconds for result in mine]) if mine else 0.0
        paper = ABLATIONS.get(sweep.name, {}).get(variant.name, {})
        rows.append(VariantRow(variant.name, variant.settings, metrics, _spreads(changes), better, failed, seconds, paper))
    leading = [row.metrics[MAIN_METRIC].mean for row in rows if MAIN_METRIC in row.metrics]
    return [
        VariantRow(**vars(row) | {"best": MAIN_METRIC in row.metrics and row.metrics[MAIN_METRIC].mean == max(leading)})
        for row in rows
    ]


def _spreads(values: Sequence[Mapping[str, float]]) -> dict[str, Spread]:
    """Of the metrics that every run has, in the order of the first one's."""
    if not values:
        return {}
    return {name: Spread.of([one[name] for one in values]) for name in values[0] if all(name in one for one in values)}


def sweep_folder(sweep: Sweep, workspace: Workspace) -> Path:
    return workspace.root / "sweeps" / sweep.folder_name


def write_results(sweep: Sweep, workspace: Workspace, results: Sequence[SweepResult]) -> Path:
    """sweep.json with everything, sweep.csv with one line per run, sweep.md with the table; their folder."""
    folder = sweep_folder(sweep, workspace)
    write_json(folder / "sweep.json", sweep_json(sweep, results))
    write_text(folder / "sweep.csv", _csv(results))
    write_text(folder / "sweep.md", sweep_markdown(sweep, results))
    return folder


def sweep_json(sweep: Sweep, results: Sequence[SweepResult]) -> dict[str, Any]:
    asked: dict[str, Any] = {"name": sweep.name, "about": sweep.about, "recipe": sweep.recipe, "settings": list(sweep.settings)}
    asked |= {"seeds": sweep.seeds, "runs": len(sweep.variants) * sweep.seeds, "data": str(sweep.data or "")}
    variants = [_to_json(row) for row in variant_rows(sweep, results)]
    return asked | {"variants": variants, "results": [result.to_json() for result in results]}


def _to_json(row: SweepResult | VariantRow) -> dict[str, Any]:
    """Its fields; the files call the metrics figures."""
    return {"figures" if name == "metrics" else name: value for name, value in asdict(row).items()}


def _csv(results: Sequence[SweepResult]) -> str:
    names = list(dict.fromkeys(name for result in results for name in result.metrics))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["variant", "seed", "state", *names, "training_seconds", "evaluation", "reason"])
    for r in results:
        values = [r.metrics.get(name, "") for name in names]
        writer.writerow([r.variant, r.seed, r.state, *values, round(r.seconds, 1), r.evaluation, r.reason])
    return text.getvalue()


def headings(rows: Sequence[VariantRow]) -> list[str]:
    """The metrics that any variant has, of those worth a column, each with the paper's beside it where it gives one."""
    shown = [name for name in SHOWN if any(name in row.metrics for row in rows)]
    return [heading for name in shown for heading in (name, *([PAPER + name] if any(name in row.paper for row in rows) else []))]


def table_cells(row: VariantRow, names: Sequence[str]) -> list[str]:
    """A variant's line of the table: its metrics, then what AFTER names."""
    seeds = str(row.metrics[MAIN_METRIC].n if MAIN_METRIC in row.metrics else 0)
    seeds += f" ({row.failed} failed)" if row.failed else ""
    shown = [_paper(row, name) if name.startswith(PAPER) else _ours(row, name) for name in names]
    change = row.differences.get(MAIN_METRIC)
    difference = "" if change is None else f"{change.shown(100, '+')} ({row.better}/{change.n})"
    return [*shown, difference, seeds, _time(row.seconds)]


def _ours(row: VariantRow, name: str) -> str:
    return row.metrics[name].shown(_scale(name)) if name in row.metrics else ""


def _paper(row: VariantRow, name: str) -> str:
    value = row.paper.get(name.removeprefix(PAPER))
    return "" if value is None else f"{value:g}"


def _scale(name: str) -> float:
    return 100.0 if name.startswith(_IN_PERCENT) else 1.0


def _time(seconds: float) -> str:
    return "" if not seconds else f"{seconds / 60:.1f} min" if seconds >= 100 else f"{seconds:.0f} s"


AFTER = ("Δ CIDEr (better)", "seeds", "training")


def failures(results: Sequence[SweepResult]) -> list[str]:
    """Each reason for a failure once, with the runs that failed for it."""
    reasons: dict[str, dict[str, list[str]]] = {}
    for result in results:
        if result.state == "failed":
            seeds = reasons.setdefault(result.reason, {}).setdefault(result.variant, [])
            seeds.append(str(result.seed))
    runs = {why: [f"{name}, seed {', '.join(seeds)}" for name, seeds in of.items()] for why, of in reasons.items()}
    return [f"{'; '.join(named)}: {why}" for why, named in runs.items()]


def sweep_markdown(sweep: Sweep, results: Sequence[SweepResult]) -> str:
    rows = variant_rows(sweep, results)
    names = headings(rows)
    wanted = len(sweep.variants) * sweep.seeds
    lines = [f"# {sweep.name}", ""]
    lines += [" ".join(sweep.about.split()), ""] if sweep.about else []
    common = f" with {', '.join(f'`{setting}`' for setting in sweep.settings)}" if sweep.settings else ""
    lines += [f"Recipe `{sweep.recipe}`{common}; {len(results)} of {wanted} runs. Mean ± standard deviation over seeds.", ""]
    headers = ["variant", "settings", *names, *AFTER]
    lines += [_line(headers), "|---" * len(headers) + "|"]
    for row in rows:
        name = f"**{_plain(row.variant)}**" if row.best else _plain(row.variant)
        settings = " ".join(f"`{_plain(setting)}`" for setting in row.settings)
        lines.append(_line([name, settings, *table_cells(row, names)]))
    lines += ["", *(f"- failed: {_plain(failure)}" for failure in failures(results))]
    return "\n".join(lines).rstrip() + "\n"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _plain(text: str) -> str:
    """Text that cannot break a table."""
    return text.replace("|", "\\|").replace("\n", " ")
