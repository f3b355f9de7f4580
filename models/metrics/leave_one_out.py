"""How much each reference agrees with the other references of its video: GL-RG's caption weights m(S), raw.

Weight i belongs to reference i. Document frequencies count the caption that is left out too. A video's only reference has nothing
to agree with: its weight is NaN, not 0, which would say that it is bad."""

from collections.abc import Callable, Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from models.metrics.bleu import bleu_4
from models.metrics.cider import cider_d
from models.metrics.document_frequencies import DocumentFrequencies
from models.metrics.ngrams import NgramIndex
from models.metrics.rouge import rouge_l
from models.metrics.sentences import Sentences, VideoCaptions

SCORES: dict[str, Callable[..., NDArray[np.float64]]] = {"cider_d": cider_d, "bleu_4": bleu_4, "rouge_l": rouge_l}

_BLOCK = 20_000  # captions indexed at a time: 100 MB, whatever the size of the data set


def leave_one_out(index: NgramIndex, score: str) -> NDArray[np.float64]:
    """An index of C references -> the score (C,) of each against the others of its video; `score` is a name of SCORES."""
    if score not in SCORES:
        raise ValueError(f"no leave-one-out weights by '{score}'; there are {', '.join(SCORES)}")
    references = index.references
    video_of = np.repeat(np.arange(len(references)), references.counts)
    own = np.arange(len(references.sentences)) - references.videos[video_of]
    weights = SCORES[score](index, references.sentences, video_of, own)
    weights[references.counts[video_of] == 1] = np.nan
    return weights


def weigh(
    references: VideoCaptions, frequencies: DocumentFrequencies, scores: Iterable[str] = tuple(SCORES)
) -> dict[str, NDArray[np.float64]]:
    """The leave-one-out scores (C,) of C references by name, some videos at a time: the index of all would be large."""
    found: dict[str, list[NDArray[np.float64]]] = {score: [] for score in scores}
    for block in _blocks(references):
        index = NgramIndex.build(block, frequencies)
        for score, parts in found.items():
            parts.append(leave_one_out(index, score))
    return {score: np.concatenate(parts) if parts else np.empty(0) for score, parts in found.items()}


def _blocks(references: VideoCaptions) -> Iterator[VideoCaptions]:
    first, sentences = 0, references.sentences
    while first < len(references):
        begin = references.videos[first]
        last = max(first + 1, int(np.searchsorted(references.videos, begin + _BLOCK, "right")) - 1)
        starts = sentences.starts[begin : references.videos[last] + 1]
        part = Sentences(sentences.tokens[starts[0] : starts[-1]], starts - starts[0])
        yield VideoCaptions(part, references.videos[first : last + 1] - begin)
        first = last
