"""Show-Tell: the video comes first, once; frames, grids and missing features; it learns by heart."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from models.captioner import Captioner
from models.captioners.gld import ShowTellOptions, build_show_tell
from models.decoding.beam_search import beam
from models.decoding.greedy_and_sampling import greedy
from models.losses.cross_entropy import CrossEntropy
from models.types import PAD, Batch
from tests.models.toy_captions import SIZES, VOCABULARY, toy_batch


def toy_show_tell(seed: int = 0, scale: float = 2.5, hidden: int = 8, embedding: int = 5) -> Captioner:
    torch.manual_seed(seed)
    options = ShowTellOptions(features=("rgb", "motion"), embedding=embedding, hidden=hidden, dropout=0.0)
    captioner = build_show_tell(options, SIZES, VOCABULARY)
    with torch.no_grad():
        for parameter in captioner.parameters():
            parameter.mul_(scale)
    return captioner.eval()


@torch.no_grad()
def test_an_lstm_cell_fed_with_the_video_then_with_words_says_the_same() -> None:
    captioner, batch = toy_show_tell(), toy_batch(videos=3, captions=1)
    assert batch.tokens is not None
    decoder, encoder = captioner.decoder, captioner.encoder
    cell = nn.LSTMCell(5, 8)
    for name, parameter in cell.named_parameters():
        parameter.copy_(decoder.lstm.get_parameter(f"{name}_l0"))  # type: ignore[attr-defined]
    means = []
    for name in ("rgb", "motion"):
        rows = [x[real].mean(0) for x, real in zip(batch.features[name], batch.masks[name], strict=True)]
        means.append(torch.stack(rows))
    state = cell(encoder.project(torch.cat(means, 1)))  # type: ignore[attr-defined]
    forced = captioner(batch)
    for t in range(batch.tokens.shape[1] - 1):
        state = cell(decoder.embed(batch.tokens[:, t]), state)  # type: ignore[attr-defined]
        logits = decoder.predict(state[0])  # type: ignore[attr-defined]
        assert torch.allclose(torch.log_softmax(logits, -1), forced[:, t], atol=1e-5)


@torch.no_grad()
def test_forcing_a_caption_equals_stepping_through_it_and_only_real_tokens_are_spoken() -> None:
    captioner, batch = toy_show_tell(), toy_batch()
    assert batch.tokens is not None and batch.video_index is not None
    forced = captioner(batch)
    memory = captioner.encode(batch.features, batch.masks).select(batch.video_index)
    state = captioner.decoder.start(memory)
    for t in range(batch.tokens.shape[1] - 1):
        logits, state, weights = captioner.decoder.step(batch.tokens[:, t], state, memory)
        assert weights is None and torch.allclose(torch.log_softmax(logits, -1), forced[:, t], atol=1e-5)
    logits, _ = captioner.word_logits(batch)
    assert torch.allclose(torch.log_softmax(logits, -1), forced[batch.tokens[:, 1:] != PAD], atol=1e-5)


@torch.no_grad()
def test_a_grid_counts_as_its_mean_and_an_image_is_a_video_of_one_frame() -> None:
    captioner, batch = toy_show_tell(), toy_batch()
    cells = {name: torch.stack([x + 1, x - 1, x], 2) for name, x in batch.features.items()}
    grids = Batch(batch.video_ids, cells, batch.masks, batch.tokens, batch.video_index)
    assert torch.allclose(captioner(grids), captioner(batch), atol=1e-4)
    image = {name: x[:, :1] for name, x in cells.items()}
    found = greedy(captioner, image, {name: torch.ones(4, 1, dtype=torch.bool) for name in image}, 5)
    assert torch.isfinite(found.log_probs).all()


@torch.no_grad()
def test_padding_never_changes_an_output_and_a_missing_feature_counts_as_zeros() -> None:
    captioner, batch = toy_show_tell(), toy_batch()
    before = captioner(batch)
    for name, mask in batch.masks.items():
        batch.features[name][~mask] = torch.nan
    assert torch.equal(captioner(batch), before)
    batch.masks["motion"][1] = False
    without = captioner(batch)
    batch.masks["motion"][1, 0] = True
    batch.features["motion"][1, 0] = 0.0
    assert torch.equal(captioner(batch), without) and not torch.allclose(without, before)
    for mask in batch.masks.values():
        mask[2] = False
    assert torch.isfinite(captioner(batch)).all()
    assert torch.isfinite(beam(captioner, batch.features, batch.masks, 4, width=2).log_probs).all()


def test_a_feature_that_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match="audio that are not there"):
        build_show_tell(ShowTellOptions(features=("audio",)), SIZES, VOCABULARY)
    batch = toy_batch()
    del batch.features["motion"]
    with pytest.raises(ValueError, match="the batch has no motion"):
        toy_show_tell()(batch)


@torch.no_grad()
def test_log_probabilities_of_seeded_weights_are_those_on_record() -> None:
    found = toy_show_tell()(toy_batch())[3, 1, :6].tolist()
    assert found == pytest.approx([-2.837884, -3.872593, -1.554821, -3.674532, -2.365613, -3.60881], abs=1e-5)


def test_it_learns_eight_clips_by_heart() -> None:
    captioner, batch = toy_show_tell(scale=1.0, hidden=32, embedding=16).train(), toy_batch(videos=8, captions=1)
    assert batch.tokens is not None
    optimiser = torch.optim.Adam(captioner.parameters(), 1e-2)
    for _ in range(150):
        optimiser.zero_grad()
        loss = CrossEntropy()(captioner, batch)
        loss.backward()
        optimiser.step()
    assert loss.item() < 0.1
    found = greedy(captioner.eval(), batch.features, batch.masks, max_length=5).tokens[:, 0]
    assert torch.equal(found, batch.tokens[:, 1:])
