"""Self-retrieval: log p(caption | video) equals teacher forcing however it is cut up, and ranks and shares follow from it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from models.decoding.greedy_and_sampling import greedy
from models.types import BOS, EOS, PAD, Batch
from storage.text.vocabulary import SPECIAL_TOKENS, Vocabulary
from tasks.evaluation import self_retrieval as module
from tasks.evaluation.self_retrieval import ReadFeatures, log_probabilities, own_video_ranks, recall_at, self_retrieval
from tests.models.toy_captions import VOCABULARY, toy_captioner, toy_features

VIDEOS = 7
IDS = [f"v{n}" for n in range(VIDEOS)]
WORDS = Vocabulary((*SPECIAL_TOKENS, *(f"w{n}" for n in range(VOCABULARY - len(SPECIAL_TOKENS)))))
QUERIES = [  # prefixes shared and not, one inside another, one empty
    [BOS, EOS],
    [BOS, 4, EOS],
    [BOS, 4, 5, 6, EOS],
    [BOS, 4, 5, 7, 7, EOS],
    [BOS, 9, 10, EOS],
    [BOS, 4, 5, EOS],
]


def reading(seed: int = 0) -> ReadFeatures:
    features, masks = toy_features(VIDEOS, seed=seed)

    def read(ids, device="cpu"):
        rows = [IDS.index(id) for id in ids]
        return {k: v[rows] for k, v in features.items()}, {k: v[rows] for k, v in masks.items()}

    return read


@torch.no_grad()
def teacher_forced(captioner, read: ReadFeatures) -> np.ndarray:
    """The same by teacher forcing, one caption at a time."""
    features, masks = read(IDS, "cpu")
    rows = []
    for query in QUERIES:
        tokens = torch.tensor([[*query, PAD]] * VIDEOS)
        log_p = captioner(Batch(tuple(IDS), features, masks, tokens, torch.arange(VIDEOS)))
        chosen = log_p.gather(2, tokens[:, 1:].unsqueeze(2)).squeeze(2)
        rows.append((chosen * (tokens[:, 1:] != PAD)).sum(1).numpy())
    return np.array(rows)


@pytest.mark.parametrize("kind", ["sa_lstm", "mp_lstm"])
@pytest.mark.parametrize(("rows", "budget"), [(8192, 1 << 28), (9, 1 << 28), (1, 1), (8192, 1)])
def test_log_probabilities_equal_teacher_forcing_however_the_work_is_cut(
    monkeypatch: pytest.MonkeyPatch, kind: str, rows: int, budget: int
) -> None:
    monkeypatch.setattr(module, "_ROWS", rows)
    monkeypatch.setattr(module, "_BUDGET", budget)
    captioner, read, seen = toy_captioner(kind), reading(), []
    found = log_probabilities(captioner, read, QUERIES, IDS, VOCABULARY, "cpu", seen.append)
    assert found == pytest.approx(teacher_forced(captioner, read), abs=1e-4)
    assert sum(seen) == VIDEOS


def test_a_prefix_is_computed_once_for_all_captions_that_share_it(monkeypatch: pytest.MonkeyPatch) -> None:
    captioner, rows = toy_captioner(), []
    step = captioner.decoder.step
    monkeypatch.setattr(captioner.decoder, "step", lambda token, *rest: rows.append(len(token)) or step(token, *rest))
    log_probabilities(captioner, reading(), QUERIES, IDS, VOCABULARY, "cpu")
    assert [n // VIDEOS for n in rows] == [1, 2, 2, 2, 1]  # BOS; 4, 9; 5, 10; 6, 7; 7


def test_captions_of_a_search_have_the_log_probability_of_the_search() -> None:
    captioner, read = toy_captioner(seed=3), reading(2)
    found = greedy(captioner, *read(IDS), max_length=6)
    queries = [WORDS.encode(words := WORDS.decode(row), len(words)) for row in found.tokens[:, 0].tolist()]
    log_p = log_probabilities(captioner, read, queries, IDS, VOCABULARY, "cpu")
    assert log_p.diagonal() == pytest.approx(found.log_probs[:, 0].numpy(), abs=1e-4)


def test_ranks_count_videos_that_are_as_likely_or_likelier() -> None:
    log_p = np.log(np.array([[0.5, 0.2, 0.3], [0.1, 0.6, 0.6]], np.float32))
    ranks = own_video_ranks(log_p, [0, 0, 1], ["a", "b", "c"])
    assert ranks == {"a": 1, "b": 3, "c": 2}, "ties come first"
    assert recall_at(ranks) == {"R@1": pytest.approx(1 / 3), "R@5": 1.0, "R@10": 1.0}


def test_equal_captions_are_ranked_alike_and_every_video_has_a_rank() -> None:
    captioner, read = toy_captioner(), reading()
    captions = dict(zip(IDS, ["w0 w1", "w0 w1", "w2", "", "w3 w3 w3", "w0", "w2 w5"], strict=True))
    ranks = self_retrieval(captioner, read, WORDS, captions, "cpu")
    assert ranks.keys() == captions.keys()
    log_p = log_probabilities(captioner, read, [WORDS.encode(["w0", "w1"], 2)], IDS, VOCABULARY, "cpu")[0]
    likelier = sorted(range(VIDEOS), key=lambda n: -log_p[n])
    assert [ranks["v0"], ranks["v1"]] == [likelier.index(0) + 1, likelier.index(1) + 1]


def test_videos_that_cannot_be_told_apart_all_come_last_among_themselves() -> None:
    def same(ids, device="cpu"):
        features, masks = toy_features(1)
        return {k: v.expand(len(ids), *v.shape[1:]) for k, v in features.items()}, {
            k: v.expand(len(ids), *v.shape[1:]) for k, v in masks.items()
        }

    ranks = self_retrieval(toy_captioner(), same, WORDS, {id: f"w{n}" for n, id in enumerate(IDS)}, "cpu")
    assert set(ranks.values()) == {VIDEOS}
