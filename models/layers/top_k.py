"""Top-k whose order is defined: of equal scores the leftmost comes first. And fast for a few of many."""

import torch
from torch import Tensor

_PIECE = 32  # scores whose maximum is taken first, where a few of many are wanted


def stable_top_k(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """scores (B, J) float32 -> the k largest of each row and their indices; of equals the leftmost comes first."""
    if not scores.is_cpu:  # to look for equals, a GPU would have to be waited for
        return _top_k_by_key(scores, k)
    values, indices = _top_k(scores, min(k + 1, scores.shape[1]))
    if values.shape[1] > k:
        # torch.topk does not define which of equals it takes; of -inf any will do.
        last, beyond = values[:, k - 1], values[:, k]
        if bool(((last == beyond) & (last > -torch.inf)).any()):
            return _top_k_by_key(scores, k)
        indices = indices[:, :k]
    indices = indices.sort(dim=1).values
    values, order = scores.gather(1, indices).sort(dim=1, descending=True, stable=True)
    return values, indices.gather(1, order)


def _top_k(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """torch.topk, several times faster for few of many: the k largest are in the k pieces with the largest maxima."""
    J = scores.shape[1]
    pieces = J // _PIECE
    if pieces < 4 * k:
        return torch.topk(scores, k, dim=1)
    cut = scores[:, : pieces * _PIECE].unflatten(1, (pieces, _PIECE))
    chosen = torch.topk(cut.amax(2), k, dim=1, sorted=False).indices
    inside = torch.arange(_PIECE, device=scores.device)
    rest = torch.arange(pieces * _PIECE, J, device=scores.device).expand(len(scores), -1)
    indices = torch.cat([(chosen.unsqueeze(2) * _PIECE + inside).flatten(1), rest], 1)
    values, order = torch.topk(scores.gather(1, indices), k, dim=1)
    return values, indices.gather(1, order)


def _top_k_by_key(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The same for any scores, several times slower. A float's bits, read as an integer, keep its order once the negative
    half is mirrored; with the index in the lower half no two keys are equal."""
    bits = (scores + 0.0).view(torch.int32)  # + 0.0 makes -0.0 and 0.0 the same
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(torch.int64)
    keys = (ordered << 32) | (scores.shape[1] - 1 - torch.arange(scores.shape[1], device=scores.device))
    indices = torch.topk(keys, k, dim=1).indices
    return scores.gather(1, indices), indices
