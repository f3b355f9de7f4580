"""GL-RG by its equations: averaged, projected, fused, fed to an LSTM; and what must not matter to it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from models.captioners.glrg import FedLstmDecoder, Fusion, GlobalLocalEncoder, GlRgOptions, build_glrg
from models.decoding.greedy_and_sampling import greedy
from models.losses.cross_entropy import CrossEntropy
from models.training.objective import Objective
from models.types import PAD
from tests.models.captioners.captioner_checks import (
    array,
    check_forced_equals_steps,
    check_it_learns_eight_clips_by_heart,
    check_padding_plays_no_part,
    linear,
    log_softmax,
    lstm_step,
)
from tests.models.captioners.toy_captioners import toy_glrg
from tests.models.toy_captions import SIZES, VOCABULARY, toy_batch

BOTH = pytest.mark.parametrize("feed", ["first", "every"])
FUSIONS = pytest.mark.parametrize("fusion", ["projections", "single"])


@FUSIONS
def test_features_of_any_length_are_averaged_projected_and_fused(fusion: Fusion) -> None:
    torch.manual_seed(1)
    sizes, lengths = {"words": 3, "actions": 4, "objects": 2}, {"words": 1, "actions": 3, "objects": 4}
    encoder = GlobalLocalEncoder(sizes, size=5, fusion=fusion, dropout=0)
    features = {name: torch.rand(2, lengths[name], size) for name, size in sizes.items()}
    masks = {name: torch.ones(2, T, dtype=torch.bool) for name, T in lengths.items()}
    masks["objects"][1] = torch.tensor([True, False, True, False])
    memory = encoder(features, masks)
    for b in range(2):
        means = []
        for name in sizes:
            rows = [features[name][b, t].double().numpy() for t in range(lengths[name]) if masks[name][b, t]]
            means.append(sum(rows) / len(rows))
        if fusion == "projections":
            # eq. 4: F = concat(phi(W), phi(A), phi(C)), each phi its own
            expected = np.concatenate([linear(phi, x) for phi, x in zip(encoder.project, means, strict=True)])  # type: ignore[arg-type]
        else:
            expected = np.maximum(linear(encoder.project[0], np.concatenate(means)), 0)  # type: ignore[arg-type]
        assert memory.summary[b].tolist() == pytest.approx(expected.tolist(), abs=1e-6)
    assert encoder.fused == memory.summary.shape[1] == (15 if fusion == "projections" else 5)
    assert torch.equal(memory.tokens[:, 0], memory.summary) and memory.mask.tolist() == [[True], [True]]


def test_what_a_video_lacks_is_zeros_in_the_fused_vector() -> None:
    encoder = GlobalLocalEncoder({"words": 3, "actions": 4}, size=2, fusion="projections", dropout=0)
    features = {"words": torch.rand(1, 2, 3), "actions": torch.full((1, 2, 4), torch.nan)}
    masks = {"words": torch.ones(1, 2, dtype=torch.bool), "actions": torch.zeros(1, 2, dtype=torch.bool)}
    fused = encoder(features, masks).summary[0]
    assert fused[2:].tolist() == [0, 0] and (fused[:2] != 0).all()


def test_a_feature_that_the_batch_lacks_is_named() -> None:
    encoder = GlobalLocalEncoder({"words": 3, "actions": 4}, size=2, fusion="projections", dropout=0)
    with pytest.raises(ValueError, match="no actions; it has words"):
        encoder({"words": torch.rand(1, 2, 3)}, {"words": torch.ones(1, 2, dtype=torch.bool)})


@BOTH
def test_the_decoder_equals_its_equations_in_a_loop(feed: str) -> None:
    captioner, batch = toy_glrg(feed=feed), toy_batch(videos=2, captions=2)
    decoder = captioner.decoder
    assert isinstance(decoder, FedLstmDecoder) and batch.tokens is not None and batch.video_index is not None
    found = captioner(batch)
    fused = array(captioner.encode(batch.features, batch.masks).summary)
    embedding = array(decoder.embed.weight)
    for n, caption in enumerate(batch.tokens.tolist()):
        F = fused[int(batch.video_index[n])]
        hidden, cell = np.zeros(8), np.zeros(8)
        for i, token in enumerate(caption[:-1]):
            if feed == "every":
                fed = np.concatenate([embedding[token], F])
            else:  # eq. 6: F for i = 1, then words
                assert decoder.first is not None
                fed = linear(decoder.first, F) if i == 0 else embedding[token]
            hidden, cell = lstm_step(decoder.lstm, fed, hidden, cell)
            expected = log_softmax(linear(decoder.predict, hidden))
            if caption[i + 1] != PAD:
                assert found[n, i].tolist() == pytest.approx(expected.tolist(), abs=1e-4)


@BOTH
@FUSIONS
def test_forcing_equals_stepping_and_padding_plays_no_part(feed: str, fusion: str) -> None:
    captioner = toy_glrg(feed=feed, fusion=fusion)
    check_forced_equals_steps(captioner, toy_batch())
    check_padding_plays_no_part(captioner)


@pytest.mark.parametrize("features", [("rgb",), ("motion",), ("motion", "rgb")])
def test_any_of_the_features_will_do(features: tuple[str, ...]) -> None:
    captioner, batch = toy_glrg(features=features), toy_batch()
    before = captioner(batch)
    for name in SIZES:
        batch.features[name] += 1.0
        assert torch.equal(captioner(batch), before) == (name not in features)
        batch.features[name] -= 1.0
        before = captioner(batch)


@FUSIONS
def test_a_video_without_any_feature_gives_numbers_and_gradients(fusion: str) -> None:
    captioner, batch = toy_glrg(fusion=fusion), toy_batch()
    for name in SIZES:
        batch.features[name][1] = torch.nan
        batch.masks[name][1] = False
    loss = CrossEntropy()(captioner, batch)
    loss.backward()
    assert torch.isfinite(loss)
    assert all(torch.isfinite(p.grad).all() for p in captioner.parameters() if p.grad is not None)
    assert torch.isfinite(greedy(captioner, batch.features, batch.masks, 4).log_probs).all()


GOLDEN = {
    ("first", "projections"): [-1.7905, -3.14242, -1.34256, -2.98118, -3.52479, -2.12283],
    ("every", "single"): [-2.45791, -2.30629, -2.745, -1.85184, -1.77221, -1.84293],
}


@pytest.mark.parametrize(("feed", "fusion"), GOLDEN)
def test_log_probabilities_of_seeded_weights_are_those_on_record(feed: str, fusion: str) -> None:
    found = toy_glrg(feed=feed, fusion=fusion)(toy_batch())[3, 1, :6].tolist()
    assert found == pytest.approx(GOLDEN[feed, fusion], rel=1e-3)


@pytest.mark.parametrize(("feed", "fusion"), GOLDEN)
def test_it_learns_eight_clips_by_heart(feed: str, fusion: str) -> None:
    torch.manual_seed(0)
    options = {"feed": feed, "fusion": fusion, "projection": 16, "embedding": 16, "hidden": 32, "dropout": 0}
    captioner = build_glrg(GlRgOptions(features=("rgb", "motion"), **options), SIZES, VOCABULARY)
    check_it_learns_eight_clips_by_heart(captioner, Objective(xe=(1.0, CrossEntropy())))
