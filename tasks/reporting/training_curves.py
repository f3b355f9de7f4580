"""The curves of a run: seeding, boosting, the word tagger, and the score kept as attention is masked (G2L, Fig. 6)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from storage.results import read_jsonl
from tasks.reporting.pages import Curve

Points = list[tuple[float, float]]

CHARTS = (
    ("Seeding: loss", "loss per word", "seeding", "total"),
    ("Seeding: validation CIDEr", "CIDEr", "seeding", "val_cider"),
    ("Seeding: spread of o over videos", "standard deviation", "seeding", "spread"),
    ("Boosting: reward", "reward per sample", "boosting", "reward"),
    ("Boosting: validation CIDEr", "CIDEr", "boosting", "val_cider"),
    ("Boosting: entropy", "nats per word", "boosting", "entropy"),
    ("Boosting: loss", "loss per word", "boosting", "total"),
)
"""title, unit, phase, name in curves.jsonl"""

_TERMS = {"xe": "cross-entropy", "dxe": "weighted cross-entropy", "rebuild": "reconstruction", "refocus": "refocusing"}
_TERMS |= {"step1": "first step", "step2": "second step", "policy": "policy gradient"}


def phase_points(folders: Mapping[str, Path]) -> dict[str, list[dict[str, Any]]]:
    """phase -> the points of its curves.jsonl."""
    return {phase: read_jsonl(folder / "curves.jsonl") for phase, folder in folders.items()}


def run_curves(points: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[Curve]:
    """The charts of one run: only those that it has points for. A loss of several terms shows each of them."""
    found = []
    for title, unit, phase, name in CHARTS:
        steps = points.get(phase, ())
        if line := _series(steps, name):
            lines = {"all together" if name == "total" else unit: line}
            terms = [term for term in _TERMS if any(term in step for step in steps)] if name == "total" else []
            parts = {_TERMS[term]: _series(steps, term) for term in terms}
            found.append(Curve(title, "epoch", unit, lines | parts if len(parts) > 1 else {unit: line}))
    if line := _series(points.get("tagger", ()), "loss"):
        found.append(Curve("Word tagger: loss", "epoch", "loss per word", {"training": line}))
    if line := _series(points.get("words_net", ()), "val_map"):
        found.append(Curve("Words from features: validation mAP", "epoch", "mAP", {"validation": line}))
    return found


def compared_curves(runs: Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]]) -> list[Curve]:
    """The same charts with a line for each run that has points."""
    found = []
    for title, unit, phase, name in CHARTS:
        lines = {label: line for label, points in runs.items() if (line := _series(points.get(phase, ()), name))}
        if lines:
            found.append(Curve(title, "epoch", unit, lines))
    return found


def _series(points: Sequence[Mapping[str, Any]], name: str) -> Points:
    """(epoch, value) of the points that have one. CIDEr and mAP are on the scale of tables."""
    scale = 100 if name in ("val_cider", "val_map") else 1
    return [(p["epoch"], scale * p[name]) for p in points if isinstance(p.get(name), int | float)]


def masking_curves(metrics: Mapping[str, Any]) -> list[Curve]:
    """G2L's Fig. 6: the scores kept as the smallest attention weights are masked, relative to none masked; of all attentions
    together and, where there are several, of each by itself."""
    found = metrics.get("attention_masking")
    if not found:
        return []
    modules = {f", over {name} alone": {"shares": found["shares"], **curve} for name, curve in found.get("modules", {}).items()}
    return [_masking_curve(curve, which) for which, curve in ({"": found} | modules).items()]


def _masking_curve(found: Mapping[str, Any], which: str) -> Curve:
    shares = [100 * share for share in found["shares"]]
    lines: dict[str, Points] = {}
    for name, values in found.items():
        if name != "shares" and isinstance(values, list) and len(values) == len(shares) and values[0]:
            lines[name] = [(share, 100 * value / values[0]) for share, value in zip(shares, values, strict=True)]
    return Curve(f"Score kept as attention is masked{which}", "% of the attention weights masked", "% of the score", lines)
