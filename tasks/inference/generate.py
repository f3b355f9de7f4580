"""Captions for many videos: batches of features in, caption rows with their attention out."""

from collections.abc import Callable, Sequence

import torch

from models.captioner import Captioner
from models.decoding.beam_search import SearchOptions, search
from models.types import Decoded
from storage.results import CaptionRow
from storage.text.vocabulary import Vocabulary
from tasks.framework.feature_access import FeatureAccess

_BATCH = 64


def rank_captions(
    captioner: Captioner,
    access: FeatureAccess,
    vocabulary: Vocabulary,
    ids: Sequence[str],
    options: SearchOptions,
    device: str,
    progress: Callable[[int], None] | None = None,
    attention: bool = True,
) -> list[list[CaptionRow]]:
    """The `n_best` captions of each video, best first; fewer where the search found fewer, but one at least. Without `attention`
    none is kept."""
    found: list[list[CaptionRow]] = []
    for start in range(0, len(ids), _BATCH):
        batch = list(ids[start : start + _BATCH])
        with torch.inference_mode():
            found_here = search(captioner, *access.read(batch, device), options, attention=attention)
        maps = None if found_here.attention is None else found_here.attention.cpu()
        decoded = Decoded(found_here.tokens.cpu(), found_here.log_probs.cpu(), maps)  # a batch at once, not number by number
        for row, id in enumerate(batch):
            finished = decoded.log_probs[row].isfinite().tolist()
            found.append([_row(decoded, vocabulary, row, n, id) for n, ok in enumerate(finished) if ok or not n])
        if progress:
            progress(len(batch))
    return found


def _row(decoded: Decoded, vocabulary: Vocabulary, row: int, n: int, id: str) -> CaptionRow:
    words, attention = vocabulary.decode(decoded.tokens[row, n].tolist()), None
    if decoded.attention is not None:
        weights = decoded.attention[row, n, : len(words)].tolist()
        attention = [[round(w, 4) for w in word] for word in weights]
    return CaptionRow(id, " ".join(words), round(decoded.log_probs[row, n].item(), 6), attention)
