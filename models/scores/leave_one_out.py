"""How much each reference agrees with the other references of its video: GL-RG's caption weights m(S), raw.

Weight i belongs to reference i of the index, so a weight is stored and shuffled with its caption, never beside it. Document
frequencies are those of the index; they count the caption that is left out too. A video's only reference has nothing to
agree with: its weight is 0."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from models.scores.bleu import bleu_4
from models.scores.cider import cider_d
from models.scores.ngrams import NgramIndex
from models.scores.rouge import rouge_l

SCORES: dict[str, Callable[..., NDArray[np.float64]]] = {"CIDEr-D": cider_d, "BLEU-4": bleu_4, "ROUGE-L": rouge_l}


def leave_one_out(index: NgramIndex, score: str) -> NDArray[np.float64]:
    """An index of C references -> the score (C,) of each against the others of its video; `score` is a name of SCORES."""
    if score not in SCORES:
        raise ValueError(f"no leave-one-out weights by '{score}'; there are {', '.join(SCORES)}")
    references = index.references
    video_of = np.repeat(np.arange(len(references)), references.counts)
    own = np.arange(len(references.sentences)) - references.videos[video_of]
    return SCORES[score](index, references.sentences, video_of, own)
