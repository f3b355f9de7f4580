"""What the papers report, on the scale of their tables (times 100), for runs on the same data set."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class PublishedScores:
    """One row of a paper's table. A score that the paper does not give is not there."""

    name: str
    scores: Mapping[str, float]
    source: str = ""


@dataclass(frozen=True)
class Benchmark:
    """A data set as the papers use it: how many videos its test split has, and what they report on it."""

    videos: int
    rows: tuple[PublishedScores, ...]


_COLUMNS = ("CIDEr", "BLEU-4", "METEOR", "ROUGE-L", "SPICE", "R@1")


def _benchmark(videos: int, *rows: tuple[str, str, tuple[float, ...]]) -> Benchmark:
    """Rows of (model, paper, scores in the order of _COLUMNS, as many as the paper gives)."""
    found = ((model, dict(zip(_COLUMNS, scores, strict=False)), paper) for model, paper, scores in rows)
    return Benchmark(videos, tuple(PublishedScores(*row) for row in found))


BENCHMARKS: Mapping[str, Benchmark] = {
    "msrvtt": _benchmark(
        2990,
        ("SA-LSTM", "RecNet", (39.9, 36.3, 25.5, 58.3)),
        ("RecNet, local", "RecNet", (42.7, 39.1, 26.6, 59.3)),
        ("RecNet, global + local, RL", "RecNet", (49.5, 39.3, 27.7)),
        ("VRE", "VRE", (48.3, 43.2, 28.0, 62.0)),
        ("G2L", "G2L", (50.3, 42.2, 28.6, 61.1)),
        ("GL-RG, XE", "GL-RG", (51.2, 45.5, 30.1, 62.6)),
        ("GL-RG, DXE", "GL-RG", (55.0, 46.9, 30.4, 63.9)),
        ("GL-RG, DXE + DR", "GL-RG", (60.6, 46.9, 31.2, 65.7)),
    ),
    "msvd": _benchmark(
        670,
        ("SA-LSTM", "RecNet", (76.2, 45.3, 31.9, 64.2)),
        ("RecNet, local", "RecNet", (80.3, 52.3, 34.1, 69.8)),
        ("RecNet, global + local, RL", "RecNet", (85.9, 52.9, 34.8)),
        ("VRE", "VRE", (86.7, 51.7, 34.3, 71.9)),
        ("G2L", "G2L", (97.1, 53.6, 35.6, 73.5)),
        ("GL-RG, XE", "GL-RG", (94.3, 55.5, 37.8, 74.7)),
        ("GL-RG, DXE", "GL-RG", (95.9, 57.7, 38.6, 74.9)),
        ("GL-RG, DXE + DR", "GL-RG", (101.0, 60.5, 38.9, 76.4)),
    ),
    "coco": _benchmark(
        5000,
        ("Show-Tell", "GLD", (103.1, 32.8, 25.7, 54.7, 19.1)),
        ("Show-Tell + GLD", "GLD", (107.7, 33.0, 25.9, 54.9, 19.3)),
        ("Top-Down", "GLD", (117.0, 36.1, 27.5, 57.1, 21.0, 66.4)),
        ("Top-Down + GLD", "GLD", (121.1, 36.1, 27.8, 57.1, 21.6, 76.24)),
    ),
}
"""data set kind -> what the papers report on it"""
