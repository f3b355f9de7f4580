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


_COLUMNS = ("CIDEr", "BLEU-4", "METEOR", "ROUGE-L", "SPICE", "R@1", "R@5", "R@10")


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
        ("Show-Tell", "GLD", (103.1, 32.8, 25.7, 54.7, 19.1, 50.84, 78.54, 87.58)),
        ("Show-Tell + GLD", "GLD", (107.7, 33.0, 25.9, 54.9, 19.3, 62.08, 88.24, 94.36)),
        ("Top-Down", "GLD", (117.0, 36.1, 27.5, 57.1, 21.0, 66.4, 88.46, 94.26)),
        ("Top-Down + GLD", "GLD", (121.1, 36.1, 27.8, 57.1, 21.6, 76.24, 94.5, 97.9)),
    ),
}
"""data set kind -> what the papers report on it"""


def _rows(names: str, **variants: tuple[float | None, ...]) -> dict[str, dict[str, float]]:
    """variant -> score -> value, for variants given as the scores in the order of `names`; None where the paper gives none."""
    columns = names.split()
    return {
        name: {column: value for column, value in zip(columns, values, strict=True) if value is not None}
        for name, values in variants.items()
    }


_TABLE = "BLEU-4 METEOR ROUGE-L CIDEr"
_GLD = "BLEU-4 ROUGE-L METEOR SPICE CIDEr UniCap AvgLen R@1 R@5 R@10"
_RECNET_RL = {
    "SA-LSTM, RL": (38.3, 26.3, 59.5, 46.1),
    "global, RL": (38.8, 27.5, 60.2, 48.4),
    "local, RL": (39.2, 27.5, 60.3, 48.7),
}

ABLATIONS: Mapping[str, Mapping[str, Mapping[str, float]]] = {
    "glrg-table2": _rows(
        _TABLE,
        **{
            "long, short and local": (46.9, 30.4, 63.9, 55.0),
            "local": (31.7, 24.0, 54.5, 35.3),
            "short": (32.3, 23.9, 54.1, 34.8),
            "long": (43.8, 28.7, 61.2, 51.7),
            "local and short": (36.7, 26.0, 57.9, 42.3),
            "local and long": (45.1, 29.3, 62.0, 53.0),
            "short and long": (45.6, 29.3, 62.9, 53.9),
        },
    ),
    "glrg-table3": _rows(
        _TABLE,
        **{
            "XE": (45.5, 30.1, 62.6, 51.2),
            "DXE by BLEU-4": (45.5, 29.7, 63.0, 51.4),
            "DXE by METEOR": (44.5, 29.8, 62.9, 52.4),
            "DXE by ROUGE-L": (45.2, 29.0, 63.5, 52.5),
            "DXE by CIDEr": (46.9, 30.4, 63.9, 55.0),
        },
    ),
    "glrg-table4": _rows(
        "ROUGE-L CIDEr",
        **{"seeding (XE)": (62.6, 51.2), "boosting after XE": (63.3, 55.3), "boosting after DXE": (65.7, 60.6)},
    ),
    "glrg-table5": _rows(
        _TABLE,
        none=(13.5, 16.1, 46.1, 12.7),
        SCST=(44.6, 30.2, 64.3, 56.4),
        b1=(46.4, 30.5, 65.0, 58.1),
        b2=(46.9, 31.2, 65.7, 60.6),
    ),
    "g2l-table1": _rows(
        _TABLE,
        **{
            "Global_base": (40.1, 27.7, 59.4, 45.2),
            "+ Alignment": (41.7, 27.9, 60.4, 46.8),
            "+ Local_1f": (41.9, 27.9, 60.6, 48.4),
            "+ Local_2f": (42.2, 28.6, 61.1, 50.3),
            "+ Local_3f": (42.3, 28.1, 60.9, 50.0),
            "w/o Gumbel": (41.1, 27.3, 59.7, 47.1),
        },
    ),
    "vre-table1": _rows(
        "BLEU-4 ROUGE-L METEOR CIDEr",
        **{
            "MeanPool": (30.4, 52.0, 23.7, 35.0),
            "SoftAtt": (28.5, 53.3, 25.0, 37.1),
            "V^f + v^s": (34.5, 55.3, 26.7, 39.6),
            "KBiGRU(V^f)": (38.0, 58.0, 27.4, 43.8),
            "KBiGRU(V^f) + v^s + v^a": (40.7, 60.4, 27.8, 45.1),
            "VRE, RL": (43.2, 62.0, 28.0, 48.3),
        },
    ),
    "gld-st": _rows(
        _GLD,
        **{
            "CIDEr": (32.8, 54.7, 25.7, 19.1, 103.1, 2713, 9.20, 50.84, 78.54, 87.58),
            "Strengthen": (32.6, 54.8, 25.7, 19.2, 102.8, 2682, 9.19, None, None, None),
            "GD": (32.9, 54.8, 25.8, 19.0, 104.0, 3040, 9.28, 61.74, 87.12, 93.94),
            "LD-Diff": (32.9, 54.8, 25.8, 19.0, 105.9, 2738, 9.20, None, None, None),
            "LD": (33.1, 55.0, 25.8, 19.0, 107.2, 2765, 9.22, 53.60, 82.24, 90.38),
            "GLD": (33.0, 54.9, 25.9, 19.3, 107.7, 3140, 9.29, 62.08, 88.24, 94.36),
        },
    ),
    "gld-tda": _rows(
        _GLD,
        **{
            "CIDEr": (36.1, 57.1, 27.5, 21.0, 117.0, 3589, 9.33, 66.40, 88.46, 94.26),
            "Strengthen": (36.2, 57.0, 27.4, 21.2, 116.8, 3582, 9.29, None, None, None),
            "GD": (36.1, 57.1, 27.6, 21.3, 117.9, 3612, 9.52, 74.53, 93.67, 97.03),
            "LD-Diff": (36.2, 57.1, 27.6, 21.3, 119.3, 3513, 9.38, None, None, None),
            "LD": (36.3, 57.2, 27.8, 21.4, 121.0, 3448, 9.41, 68.82, 90.90, 95.80),
            "GLD": (36.1, 57.1, 27.8, 21.6, 121.1, 3797, 9.56, 76.24, 94.50, 97.90),
        },
    ),
    "gld-table4": _rows(
        "BLEU-4 ROUGE-L METEOR SPICE CIDEr UniCap AvgLen",
        **{
            "lambda 0, eta 0": (36.1, 57.1, 27.5, 21.0, 117.0, 3589, 9.33),
            "lambda 2, eta 0": (35.1, 56.3, 27.3, 20.6, 119.7, 3165, 9.29),
            "lambda 5, eta 0": (36.0, 57.0, 27.8, 21.2, 120.5, 3340, 9.38),
            "lambda 8, eta 0": (35.7, 56.8, 27.6, 21.0, 120.2, 3276, 9.34),
            "lambda 5, eta 1": (36.3, 57.2, 27.8, 21.4, 121.0, 3448, 9.41),
            "lambda 5, eta 2": (36.1, 57.0, 27.8, 21.2, 120.7, 3394, 9.38),
        },
    ),
    "recnet-table1": _rows(
        _TABLE,
        **{
            "SA-LSTM": (36.3, 25.5, 58.3, 39.9),
            "global": (38.3, 26.2, 59.1, 41.7),
            "local": (39.1, 26.6, 59.3, 42.7),
            **_RECNET_RL,
        },
    ),
    "recnet-table3": _rows(
        _TABLE,
        **{
            "S2VT": (39.6, 31.2, 67.5, 66.7),
            "SA-LSTM": (45.3, 31.9, 64.2, 76.2),
            "global, S2VT": (42.9, 32.3, 68.5, 69.3),
            "local, S2VT": (43.7, 32.7, 68.6, 69.8),
            "global": (51.1, 34.0, 69.4, 79.7),
            "local": (52.3, 34.1, 69.8, 80.3),
        },
    ),
    "recnet-table4": _rows(
        "CIDEr", **{"half, SA-LSTM": (72.2,), "half, local": (78.9,), "all, SA-LSTM": (76.2,), "all, local": (80.3,)}
    ),
    "recnet-table5": _rows(
        _TABLE,
        **{
            "SA-LSTM": (1.58, 8.69, 18.24, 28.50),
            "global": (1.67, 9.23, 20.07, 34.78),
            "local": (1.71, 9.70, 20.50, 35.52),
            "SA-LSTM, RL": (1.65, 9.37, 21.03, 33.57),
            "global, RL": (1.72, 10.43, 23.25, 37.96),
            "local, RL": (1.74, 10.47, 23.49, 38.43),
        },
    ),
    "recnet-table6": _rows(
        _TABLE,
        **{"SA-LSTM": (36.3, 25.5, 58.3, 39.9), "local": (39.1, 26.6, 59.3, 42.7), "transposed": (36.7, 25.7, 57.9, 40.4)},
    ),
    "recnet-table7": _rows(
        "BLEU-4 METEOR CIDEr",
        **{
            "global": (38.3, 26.2, 41.7),
            "local": (39.1, 26.6, 42.3),
            "global and local": (38.7, 26.7, 43.1),
            "global, RL": (38.8, 27.5, 48.4),
            "local, RL": (39.2, 27.5, 48.7),
            "global and local, RL": (39.3, 27.7, 49.5),
        },
    ),
}
"""shipped sweep -> variant -> score -> what the paper's table says of it, times 100 but for UniCap and AvgLen; on
MSR-VTT, but COCO for GLD, MSVD for RecNet's Tables 3 and 4 and ActivityNet for its Table 5."""
