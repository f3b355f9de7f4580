"""Top-Down: both LSTMs and the attention against their equations; grids of images and videos; it learns by heart."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from models.captioner import Captioner
from models.captioners.gld import TopDownOptions, build_top_down
from models.decoding.beam_search import beam
from models.decoding.greedy_and_sampling import greedy
from models.losses.cross_entropy import CrossEntropy
from models.types import PAD, Batch
from tests.models.toy_captions import SIZES, VOCABULARY, toy_batch


def toy_top_down(seed: int = 0, scale: float = 2.5, **changes: Any) -> Captioner:
    torch.manual_seed(seed)
    values: dict[str, Any] = {"features": ("rgb", "motion"), "embedding": 5, "hidden": 8, "attention": 7, "dropout": 0.0}
    captioner = build_top_down(TopDownOptions(**(values | changes)), SIZES, VOCABULARY)
    with torch.no_grad():
        for parameter in captioner.parameters():
            parameter.mul_(scale)
    return captioner.eval()


@torch.no_grad()
def test_two_lstm_cells_and_attention_written_out_say_the_same() -> None:
    captioner, batch = toy_top_down(), toy_batch(videos=3, captions=1)
    assert batch.tokens is not None
    d: Any = captioner.decoder
    memory = captioner.encode(batch.features, batch.masks)
    look, tell = nn.LSTMCell(8 + 8 + 5, 8), nn.LSTMCell(8 + 8, 8)
    look.weight_ih.copy_(torch.cat([d.look_from_past.weight[:, :8], d.look_from_mean.weight, d.look_from_word.weight], 1))
    look.weight_hh.copy_(d.look_from_past.weight[:, 8:])
    look.bias_ih.copy_(d.look_from_word.bias)
    tell.weight_ih.copy_(d.tell.weight[:, :16])
    tell.weight_hh.copy_(d.tell.weight[:, 16:])
    tell.bias_ih.copy_(d.tell.bias)
    look.bias_hh.zero_(), tell.bias_hh.zero_()
    forced = captioner(batch)
    for i in range(3):
        rows = memory.tokens[i][memory.mask[i]]
        h1 = c1 = h2 = c2 = torch.zeros(1, 8)
        for t in range(batch.tokens.shape[1] - 1):
            word = d.embed(batch.tokens[i : i + 1, t])
            h1, c1 = look(torch.cat([h2, rows.mean(0, keepdim=True), word], 1), (h1, c1))
            e = d.reader.score(torch.tanh(d.reader.from_memory(rows) + d.reader.from_hidden(h1)))
            context = (torch.softmax(e, 0) * rows).sum(0, keepdim=True)
            h2, c2 = tell(torch.cat([context, h1], 1), (h2, c2))
            assert torch.allclose(torch.log_softmax(d.predict(h2), -1)[0], forced[i, t], atol=1e-4)


@torch.no_grad()
def test_forcing_a_caption_equals_stepping_through_it_and_attention_sums_to_one() -> None:
    captioner, batch = toy_top_down(), toy_batch()
    assert batch.tokens is not None and batch.video_index is not None
    forced = captioner(batch)
    memory = captioner.encode(batch.features, batch.masks).select(batch.video_index)
    state = captioner.decoder.start(memory)
    for t in range(batch.tokens.shape[1] - 1):
        logits, state, weights = captioner.decoder.step(batch.tokens[:, t], state, memory)
        assert torch.allclose(torch.log_softmax(logits, -1), forced[:, t], atol=1e-5)
        assert weights is not None and torch.allclose(weights.sum(1), torch.ones(8), atol=1e-5)
        assert (weights[~memory.mask] == 0).all()
    logits, _ = captioner.word_logits(batch)
    assert torch.allclose(torch.log_softmax(logits, -1), forced[batch.tokens[:, 1:] != PAD], atol=1e-5)


@torch.no_grad()
def test_a_grid_over_time_is_one_row_of_places() -> None:
    captioner, batch = toy_top_down(features=("rgb",)), toy_batch(rows=6)
    mask = torch.tensor([[True, True], [True, False], [True, True], [True, False]])
    cells = batch.features["rgb"].view(4, 2, 3, -1)
    grid = Batch(batch.video_ids, {"rgb": cells}, {"rgb": mask}, batch.tokens, batch.video_index)
    flat = Batch(
        batch.video_ids, {"rgb": cells.flatten(1, 2)}, {"rgb": mask.repeat_interleave(3, 1)}, batch.tokens, batch.video_index
    )
    assert torch.equal(captioner(grid), captioner(flat))
    image = captioner(Batch(("v1",), {"rgb": cells[1:2, :1]}, {"rgb": mask[1:2, :1]}, flat.tokens, torch.zeros(8).long()))
    assert torch.allclose(image[2:4], captioner(grid)[2:4], atol=1e-5)  # video 1 is an image of six, three of them padding
    found = beam(captioner, grid.features, grid.masks, 5, width=2, attention=True)
    assert found.attention is not None and found.attention.shape == (4, 1, 6, 6)


@torch.no_grad()
@pytest.mark.parametrize("join", ["time", "depth"])
def test_padding_never_changes_an_output_and_missing_features_are_borne(join: str) -> None:
    captioner, batch = toy_top_down(join=join), toy_batch()
    before = captioner(batch)
    for name, mask in batch.masks.items():
        batch.features[name][~mask] = torch.nan
    assert torch.equal(captioner(batch), before)
    batch.masks["motion"][1] = False
    assert torch.isfinite(captioner(batch)).all()
    for mask in batch.masks.values():
        mask[2] = False
    assert torch.isfinite(captioner(batch)).all()


def test_a_feature_that_is_not_there_is_named() -> None:
    batch = toy_batch()
    del batch.features["motion"]
    with pytest.raises(ValueError, match="the batch has no motion"):
        toy_top_down()(batch)


@torch.no_grad()
def test_log_probabilities_of_seeded_weights_are_those_on_record() -> None:
    found = toy_top_down()(toy_batch())[3, 1, :6].tolist()
    assert found == pytest.approx([-1.604785, -3.73601, -2.95502, -2.456006, -2.676505, -2.17934], abs=1e-5)


def test_it_learns_eight_clips_by_heart() -> None:
    captioner = toy_top_down(scale=1.0, hidden=32, embedding=16, attention=16).train()
    batch = toy_batch(videos=8, captions=1)
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
