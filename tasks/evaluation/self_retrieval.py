"""Self-retrieval (GLD, Section IV-D): does a caption point to its own video? Each caption is a query for which all videos are
ranked by p(caption | video); R@K is the share of captions whose own video is among the first K.

p is the captioner's own, the end of the caption included; dividing by a caption's length would not change its ranking. Videos
that come as near as rounding can tell are ranked before a caption's own: near duplicates never help. Captions share prefixes,
and the decoder's state after a prefix depends on the video and the prefix alone. So the captions form a prefix tree, of which
each node is computed once per block of videos; the rows computed at a time stay within a budget."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.captioner import Captioner
from models.types import EOS, Memory, State
from models.vse import VisualSemantic, scores
from storage.text.vocabulary import Vocabulary
from tasks.framework.feature_access import FeatureAccess
from tasks.train_embedding import embed_videos
from tasks.training.batches import pad

RANKS = (1, 5, 10)
TIE = 1e-4  # a difference of log-probabilities that rounding alone can make
_BLOCK = 64  # videos at most at a time
_ROWS = 8192  # (prefix, video) pairs whose state is kept at a time, unless one video alone has more
_BUDGET = 256 << 20  # bytes of memory and logits of one step

ReadFeatures = Callable[[Sequence[str], str], tuple[dict[str, Tensor], dict[str, Tensor]]]
"""B video ids and a device -> features name -> (B, T, D), masks name -> (B, T)"""


class PrefixLevel(NamedTuple):
    """The M prefixes of one length, in the order of their parents."""

    parents: Tensor
    """(M,) the index of each prefix's parent among the continuing prefixes of the level before"""
    tokens: Tensor
    """(M,) the last token of each prefix"""
    ends: Tensor
    """(E,) the prefixes that are whole captions"""
    ended: Tensor
    """(E,) those captions"""
    continuing: Tensor
    """(G,) the prefixes that do not end"""


def self_retrieval(
    captioner: Captioner,
    read: ReadFeatures,
    vocabulary: Vocabulary,
    captions: Mapping[str, str],
    device: str,
    progress: Callable[[int], None] | None = None,
) -> dict[str, int]:
    """video id -> the rank of the video when all of them are ranked for its caption; 1 is best."""
    ids = sorted(captions)
    distinct = sorted(set(captions.values()))
    queries = [vocabulary.encode(words := text.split(), len(words)) for text in distinct]
    log_p = log_probabilities(captioner, read, queries, ids, len(vocabulary), device, progress)
    row = {text: n for n, text in enumerate(distinct)}
    return own_video_ranks(log_p, [row[captions[id]] for id in ids], ids)


@torch.no_grad()
def embedding_ranks(
    net: VisualSemantic, access: FeatureAccess, vocabulary: Vocabulary, captions: Mapping[str, str], device: str
) -> dict[str, int]:
    """The same by an embedding's cosines, which know nothing of the captioner; ties rank before one's own."""
    ids = sorted(captions)
    token_ids = [vocabulary.encode(words := captions[id].split(), len(words))[1:] for id in ids]  # without BOS
    starts = range(0, len(ids), _BLOCK)
    sentences = torch.cat([net.sentences(pad(token_ids[start : start + _BLOCK]).to(device)) for start in starts])
    cosines = scores(sentences, embed_videos(net, access, ids, device))
    return own_video_ranks(cosines.cpu().numpy(), range(len(ids)), ids)


def recall_at(ranks: Mapping[str, int]) -> dict[str, float]:
    """The shares of ranks that are at most 1, 5 and 10."""
    return {f"R@{k}": sum(rank <= k for rank in ranks.values()) / len(ranks) for k in RANKS}


def own_video_ranks(log_p: NDArray[np.float32], rows: Sequence[int], ids: Sequence[str]) -> dict[str, int]:
    """log p (C, N) of C captions in N videos, the caption's row (N,) of each video -> its rank in that row."""
    own = log_p[rows, range(len(ids))]
    return {id: int((log_p[row] >= own[n] - TIE).sum()) for n, (id, row) in enumerate(zip(ids, rows, strict=True))}


def log_probabilities(
    captioner: Captioner,
    read: ReadFeatures,
    queries: Sequence[Sequence[int]],
    ids: Sequence[str],
    vocabulary_size: int,
    device: str,
    progress: Callable[[int], None] | None = None,
) -> NDArray[np.float32]:
    """C captions as BOS w1 .. wn EOS, N videos -> log p(caption | video) (C, N). The captioner must be in eval mode."""
    levels = _prefix_levels(queries, device)
    widest = max(len(level.continuing) for level in levels)
    block = max(1, min(_BLOCK, _ROWS // widest))
    found = np.empty((len(queries), len(ids)), np.float32)
    for start in range(0, len(ids), block):
        with torch.inference_mode():
            memory = captioner.encode(*read(ids[start : start + block], device))
            found[:, start : start + block] = _score_captions(captioner, memory, levels, vocabulary_size).cpu().numpy()
        if progress:
            progress(min(block, len(ids) - start))
    return found


def _prefix_levels(queries: Sequence[Sequence[int]], device: str) -> list[PrefixLevel]:
    """All prefixes of the captions by length, from BOS alone to the longest caption."""
    root = torch.zeros(1, dtype=torch.long, device=device)
    levels = [PrefixLevel(root, torch.full_like(root, queries[0][0]), root[:0], root[:0], root)]
    running = {0: list(range(len(queries)))}  # continuing prefix -> the captions that start with it
    while running:
        columns: tuple[list[int], ...] = ([], [], [], [], [])
        parents, tokens, ends, ended, continuing = columns
        after: dict[int, list[int]] = {}
        for parent, captions in running.items():
            following: dict[int, list[int]] = {}
            for caption in captions:
                following.setdefault(queries[caption][len(levels)], []).append(caption)
            for token, members in following.items():
                if token == EOS:
                    ends += [len(tokens)] * len(members)
                    ended += members
                else:
                    after[len(continuing)] = members
                    continuing.append(len(tokens))
                parents.append(parent)
                tokens.append(token)
        levels.append(PrefixLevel(*(torch.tensor(column, dtype=torch.long, device=device) for column in columns)))
        running = after
    return levels


def _score_captions(captioner: Captioner, memory: Memory, levels: Sequence[PrefixLevel], vocabulary_size: int) -> Tensor:
    """Memory of B videos, the prefix tree of C captions -> log p (C, B)."""
    videos, count = len(memory.mask), sum(len(level.ended) for level in levels)
    bytes_per_row = 8 * vocabulary_size + sum(
        part[0].nbytes for part in (memory.tokens, memory.mask, memory.summary, *memory.extras.values())
    )
    most = max(1, _BUDGET // (bytes_per_row * videos))
    totals = torch.zeros(1, videos, dtype=torch.float64, device=memory.mask.device)  # of continuing prefixes: (G, B)
    found = torch.empty(count, videos, dtype=torch.float64, device=memory.mask.device)
    state = captioner.decoder.start(memory)
    for level, following in pairwise(levels):
        log_p, state = _step(captioner, level.tokens[level.continuing], state, memory, following, most)
        totals = totals[following.parents] + log_p
        found[following.ended] = totals[following.ends]
        totals = totals[following.continuing]
        rows = following.parents[following.continuing, None] * videos + torch.arange(videos, device=totals.device)
        state = tuple(part.index_select(0, rows.flatten()) for part in state)
    return found


def _step(
    captioner: Captioner, tokens: Tensor, state: State, memory: Memory, following: PrefixLevel, most: int
) -> tuple[Tensor, State]:
    """tokens (G,) of prefixes, state of G x B rows -> log p (M, B) of the next level's tokens, new state of G x B rows.

    At most `most` prefixes at a time: logits and copies of the memory are far larger than states."""
    videos = len(memory.mask)
    found, states = [], []
    for start in range(0, len(tokens), most):
        part = tokens[start : start + most]
        rows = torch.arange(videos, device=tokens.device).repeat(len(part))
        old = tuple(column[start * videos : (start + len(part)) * videos] for column in state)
        logits, new, _ = captioner.decoder.step(part.repeat_interleave(videos), old, memory.select(rows))
        log_p = torch.log_softmax(logits.float(), dim=-1).view(len(part), videos, -1)
        edges = torch.tensor([start, start + len(part)], device=tokens.device)
        first, last = torch.searchsorted(following.parents, edges).tolist()
        found.append(log_p[following.parents[first:last] - start, :, following.tokens[first:last]])
        states.append(new)
    return torch.cat(found), tuple(torch.cat(parts) for parts in zip(*states, strict=True))
