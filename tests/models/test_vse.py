"""VSE++: vectors, the max of hinges by hand, recalls by hand, and that it learns which caption is whose."""

from __future__ import annotations

import itertools

import pytest
import torch

from models import vse
from models.training.objective import Objective
from models.types import EOS, PAD
from models.vse import MaxOfHinges, VisualSemantic, VseOptions, hardest, max_of_hinges, recalls, scores, sum_of_hinges
from tests.models.toy_captions import SIZES, VOCABULARY, toy_batch


def toy_embedding(size: int = 12) -> VisualSemantic:
    torch.manual_seed(0)
    return VisualSemantic(VseOptions(features=("rgb", "motion"), size=size, embedding=6), SIZES, VOCABULARY)


@torch.no_grad()
def test_vectors_have_length_one_and_scores_are_cosines() -> None:
    embedding, batch = toy_embedding(), toy_batch()
    found, video_index = embedding(batch)
    assert found.shape == (8, 4) and torch.equal(video_index, torch.tensor([0, 0, 1, 1, 2, 2, 3, 3]))
    assert batch.tokens is not None
    said, seen = embedding.sentences(batch.tokens[:, 1:]), embedding.videos(batch.features, batch.masks)
    assert torch.allclose(said.norm(dim=1), torch.ones(8)) and torch.allclose(seen.norm(dim=1), torch.ones(4))
    for n, b in itertools.product(range(8), range(4)):
        assert found[n, b].item() == pytest.approx(torch.cosine_similarity(said[n], seen[b], dim=0).item(), abs=1e-5)


@torch.no_grad()
def test_a_sentence_is_the_grus_state_at_its_eos_whatever_stands_behind() -> None:
    embedding = toy_embedding()
    words = torch.tensor([[4, 5, EOS]])
    expected = embedding.sentences(words)
    _, last = embedding.gru(embedding.embed(words))
    assert torch.allclose(expected, torch.nn.functional.normalize(last[0], dim=1), atol=1e-6)
    rows = torch.tensor([[4, 5, EOS, PAD, PAD, PAD], [4, 5, EOS, 7, EOS, 8], [6, 7, 8, 9, 4, EOS]])
    assert torch.allclose(embedding.sentences(rows)[:2], expected.repeat(2, 1), atol=1e-6)
    odd = embedding.sentences(torch.tensor([[4, 5, PAD], [EOS, PAD, PAD], [PAD, PAD, PAD], [4, 5, 6]]))
    assert torch.isfinite(odd).all()
    assert torch.allclose(odd[0], embedding.sentences(torch.tensor([[4, 5]]))[0], atol=1e-6)


@torch.no_grad()
def test_a_video_is_the_mean_of_its_real_rows_in_time_and_space() -> None:
    embedding, batch = toy_embedding(), toy_batch()
    before = embedding.videos(batch.features, batch.masks)
    for name, mask in batch.masks.items():
        batch.features[name][~mask] = torch.nan
    assert torch.equal(embedding.videos(batch.features, batch.masks), before)
    grid = {name: torch.stack([x - 1, x + 1], 2) for name, x in batch.features.items()}
    assert torch.allclose(embedding.videos(grid, batch.masks), before, atol=1e-5)
    batch.masks["rgb"][0] = False
    assert torch.isfinite(embedding.videos(batch.features, batch.masks)).all()


SCORES = torch.tensor([[0.9, 0.8, 0.1], [0.3, 0.6, 0.0], [0.5, 0.7, 0.65]])


def test_the_max_of_hinges_by_hand() -> None:
    own, video, caption = hardest(SCORES, torch.arange(3))
    assert own.tolist() == pytest.approx([0.9, 0.6, 0.65])
    assert video.tolist() == pytest.approx([0.8, 0.3, 0.7])  # the best of the others in each row
    assert caption.tolist() == pytest.approx([0.5, 0.8, 0.1])  # and in each column
    # 0.2 + 0.8 - 0.9 | 0.2 + 0.8 - 0.6 | 0.2 + 0.7 - 0.65, the rest is below 0
    assert max_of_hinges(SCORES, torch.arange(3), 0.2).tolist() == pytest.approx([0.1, 0.4, 0.25])


def test_the_sum_of_hinges_counts_every_other_video_and_caption() -> None:
    scores, video_index, margin = (
        torch.rand((5, 3), generator=torch.Generator().manual_seed(3)),
        torch.tensor([0, 0, 1, 2, 2]),
        0.4,
    )
    expected = []
    for n in range(5):
        own = scores[n, video_index[n]]
        videos = [scores[n, b] for b in range(3) if b != video_index[n]]
        captions = [scores[k, video_index[n]] for k in range(5) if video_index[k] != video_index[n]]
        expected.append(sum(max(0.0, float(margin + other - own)) for other in videos + captions))
    assert sum_of_hinges(scores, video_index, margin).tolist() == pytest.approx(expected, abs=1e-6)
    assert (sum_of_hinges(scores, video_index, margin) >= max_of_hinges(scores, video_index, margin) - 1e-6).all()


def test_all_negatives_count_in_the_first_epochs_only() -> None:
    embedding, batch = toy_embedding(), toy_batch()
    found, video_index = embedding(batch)
    every, hard = (hinges(found, video_index, 0.2).mean().item() for hinges in (sum_of_hinges, max_of_hinges))
    assert every > hard
    objective = Objective(hinges=(1.0, MaxOfHinges(easy=2)))
    losses = [objective.at(epoch)(embedding, batch)[0].item() for epoch in range(4)]
    assert losses == pytest.approx([every, every, hard, hard])


def test_captions_of_the_same_video_are_no_negatives() -> None:
    video_index = torch.tensor([0, 0, 1])
    own, video, caption = hardest(SCORES[:, :2], video_index)
    assert own.tolist() == pytest.approx([0.9, 0.3, 0.7])
    assert video.tolist() == pytest.approx([0.8, 0.6, 0.5]) and caption.tolist() == pytest.approx([0.5, 0.5, 0.8])


def test_a_batch_of_one_video_has_no_loss_and_finite_gradients() -> None:
    embedding, batch = toy_embedding(), toy_batch(videos=1)
    loss = MaxOfHinges()(embedding, batch)
    loss.backward()
    assert loss.item() == 0
    assert all(torch.isfinite(p.grad).all() for p in embedding.parameters() if p.grad is not None)


@pytest.mark.parametrize("block", [1, 2, 100])
def test_recalls_by_hand(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vse, "_BLOCK", block)
    videos = torch.nn.functional.normalize(torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]]), dim=1)
    said = torch.nn.functional.normalize(torch.tensor([[1.0, 0.1], [1.0, 0.0], [0.0, 1.0], [0.6, 0.8]]), dim=1)
    monkeypatch.setattr(vse, "RANKS", (1, 2, 3))
    found = recalls(said, videos, torch.tensor([0, 1, 2, 2]))
    # sentences: 0 finds its video first, 1 second, 2 first, 3 (0.96 of video 1, 0.8 of its own) second
    assert found["video R@1"] == 0.5 and found["video R@2"] == 1
    # videos: 0 has sentence 1 (1.0) before its own; 1 (own 0.8) has 0 and 3 before it; 2 has its own first
    assert found["caption R@1"] == pytest.approx(1 / 3) and found["caption R@2"] == pytest.approx(2 / 3)
    assert found["caption R@3"] == 1


def test_twins_never_help_and_videos_without_sentences_take_no_part() -> None:
    same = torch.tensor([[1.0, 0.0]]).repeat(3, 1)
    found = recalls(same[:2], same, torch.tensor([0, 1]))
    assert found["video R@1"] == 0 and found["video R@5"] == 1 and found["caption R@1"] == 0


def test_it_learns_which_caption_is_whose() -> None:
    embedding, batch = toy_embedding(size=32), toy_batch(videos=12, captions=1)
    optimiser = torch.optim.Adam(embedding.parameters(), 5e-3)
    for _ in range(80):
        optimiser.zero_grad()
        loss = MaxOfHinges()(embedding, batch)
        loss.backward()
        optimiser.step()
    with torch.no_grad():
        found, video_index = embedding(batch)
    assert loss.item() < 0.2 and (found.argmax(1) == video_index).double().mean() > 0.8


def test_what_is_missing_is_named() -> None:
    with pytest.raises(ValueError, match="audio that are not there; there are motion, rgb"):
        VisualSemantic(VseOptions(features=("audio",)), SIZES, VOCABULARY)
    batch = toy_batch()
    del batch.features["rgb"]
    with pytest.raises(ValueError, match="the batch has no rgb"):
        toy_embedding()(batch)


def test_all_pairs_are_scored_at_once() -> None:
    assert scores(torch.eye(3)[:2], torch.eye(3)).tolist() == [[1, 0, 0], [0, 1, 0]]
