"""What the papers report, on the scale of their tables (times 100), for runs on the same data set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Published:
    """One row of a paper's table. A score that the paper does not give is not there."""

    name: str
    scores: Mapping[str, float]
    source: str = ""


@dataclass(frozen=True)
class Benchmark:
    """A data set as the papers use it: how many videos its test split has, and what they report on it."""

    videos: int
    rows: tuple[Published, ...]


def _four(name: str, source: str, bleu: float, meteor: float, rouge: float | None, cider: float) -> Published:
    scores = {"CIDEr": cider, "BLEU-4": bleu, "METEOR": meteor} | ({"ROUGE-L": rouge} if rouge is not None else {})
    return Published(name, scores, source)


def _gld(
    name: str, bleu: float, meteor: float, rouge: float, spice: float, cider: float, recall: float | None = None
) -> Published:
    row = _four(name, "GLD", bleu, meteor, rouge, cider)
    found = {**row.scores, "SPICE": spice} | ({"R@1": recall} if recall is not None else {})
    return Published(name, found, "GLD")


BENCHMARKS: Mapping[str, Benchmark] = {
    "msrvtt": Benchmark(
        2990,
        (
            _four("SA-LSTM", "RecNet", 36.3, 25.5, 58.3, 39.9),
            _four("RecNet, local", "RecNet", 39.1, 26.6, 59.3, 42.7),
            _four("RecNet, global + local, RL", "RecNet", 39.3, 27.7, None, 49.5),
            _four("VRE", "VRE", 43.2, 28.0, 62.0, 48.3),
            _four("G2L", "G2L", 42.2, 28.6, 61.1, 50.3),
            _four("GL-RG, XE", "GL-RG", 45.5, 30.1, 62.6, 51.2),
            _four("GL-RG, DXE", "GL-RG", 46.9, 30.4, 63.9, 55.0),
            _four("GL-RG, DXE + DR", "GL-RG", 46.9, 31.2, 65.7, 60.6),
        ),
    ),
    "msvd": Benchmark(
        670,
        (
            _four("SA-LSTM", "RecNet", 45.3, 31.9, 64.2, 76.2),
            _four("RecNet, local", "RecNet", 52.3, 34.1, 69.8, 80.3),
            _four("RecNet, global + local, RL", "RecNet", 52.9, 34.8, None, 85.9),
            _four("VRE", "VRE", 51.7, 34.3, 71.9, 86.7),
            _four("G2L", "G2L", 53.6, 35.6, 73.5, 97.1),
            _four("GL-RG, XE", "GL-RG", 55.5, 37.8, 74.7, 94.3),
            _four("GL-RG, DXE", "GL-RG", 57.7, 38.6, 74.9, 95.9),
            _four("GL-RG, DXE + DR", "GL-RG", 60.5, 38.9, 76.4, 101.0),
        ),
    ),
    "coco": Benchmark(
        5000,
        (
            _gld("Show-Tell", 32.8, 25.7, 54.7, 19.1, 103.1),
            _gld("Show-Tell + GLD", 33.0, 25.9, 54.9, 19.3, 107.7),
            _gld("Top-Down", 36.1, 27.5, 57.1, 21.0, 117.0, 66.4),
            _gld("Top-Down + GLD", 36.1, 27.8, 57.1, 21.6, 121.1, 76.24),
        ),
    ),
}
"""data set kind -> what the papers report on it"""
