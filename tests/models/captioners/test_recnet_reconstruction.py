"""Reconstruction losses in plain loops: masks, missing features, and one pass for all terms."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from models.captioner import Captioner
from models.captioners.recnet.reconstruction_loss import (
    ReconstructionLoss,
    SampledReconstructionLoss,
    global_distance,
    local_distance,
)
from models.captioners.recnet.reconstructors import GlobalReconstructor, Reconstruction, ReconstructionTarget, Reconstructor
from models.losses.cross_entropy import CrossEntropy
from models.losses.policy_gradient import Dropout, PolicyGradient
from models.rewards.baselines import NoBaseline
from models.training.objective import Objective, Term
from models.types import BOS, EOS, PAD, UNK, Batch, Memory
from tests.models.captioners.captioner_checks import array
from tests.models.captioners.toy_captioners import toy_recnet
from tests.models.toy_captions import SIZES, VOCABULARY, toy_batch, toy_captioner


def token_count(batch: Batch) -> int:
    """Words and EOS of all captions."""
    assert batch.tokens is not None
    return int((batch.tokens[:, 1:] != PAD).sum())


def captions_of(lengths: list[int]) -> Batch:
    """One caption of so many tokens, EOS included, for each of as many toy videos."""
    batch = toy_batch(videos=len(lengths), captions=1)
    random = torch.Generator().manual_seed(7)
    tokens = torch.full((len(lengths), 1 + max(lengths)), PAD)
    for row, length in enumerate(lengths):
        words = torch.randint(4, VOCABULARY, (length - 1,), generator=random)
        tokens[row, : 1 + length] = torch.cat([torch.tensor([BOS]), words, torch.tensor([EOS])])
    return replace(batch, tokens=tokens)


def distance_by_hand(captioner: Captioner, batch: Batch, caption: int) -> float:
    """The mean over a video's valid frames of the Euclidean distance to what a caption reconstructs (eq. 12)."""
    assert batch.video_index is not None
    video, rows = int(batch.video_index[caption]), captioner.reconstruct(batch).rows[caption].detach()
    truth = torch.cat([batch.features[name][video] for name in SIZES], dim=1)
    frames = range(int(batch.masks["rgb"][video].sum()))
    return sum(float(((rows[j] - truth[j]) ** 2).sum() ** 0.5) for j in frames) / len(frames)


def test_lambda_weighs_a_captions_distance_beside_its_whole_negative_log_likelihood() -> None:
    """Eq. 22 written out for captions of 8 and 10 tokens; the objective is that sum, divided by the 18 tokens."""
    captioner, batch = toy_recnet(), captions_of([8, 10])
    assert batch.tokens is not None
    log_probs = captioner(batch).detach()
    whole = 0.0
    for caption, length in enumerate([8, 10]):
        negative_log_p = -sum(float(log_probs[caption, t, batch.tokens[caption, t + 1]]) for t in range(length))
        whole += negative_log_p + 0.2 * distance_by_hand(captioner, batch, caption)
    objective = Objective(xe=(1.0, CrossEntropy()), rebuild=(0.2, ReconstructionLoss("local")))
    assert objective(captioner, batch)[0].item() == pytest.approx(whole / 18, rel=1e-5)


@pytest.mark.parametrize("dropout", ["both", "none"])
def test_lambda_weighs_the_distance_of_a_sample_beside_its_policy_loss(dropout: Dropout) -> None:
    """Eq. 22 with the reward: -sum over samples of advantage x log p(sample) - lambda x distance, per chosen token."""
    captioner, batch = toy_recnet(dropout=0.3).train(), toy_batch(videos=2, captions=1)

    def worth(samples: Tensor, video_of: Tensor) -> Tensor:
        return (samples == 5).sum(1).float() + 1

    policy = PolicyGradient(worth, {"v0": 0, "v1": 1}, 3, 6, NoBaseline(), dropout=dropout)
    objective = Objective(policy=(1.0, policy), rebuild=(0.2, SampledReconstructionLoss("local", policy)))
    total = objective(captioner, batch)[0].item()
    if dropout == "both":  # each pass drops units of its own: nothing to compare with, but both terms share theirs
        assert torch.isfinite(torch.tensor(total))
        return
    sampled = policy.sampled
    assert sampled is not None and sampled.tokens is not None
    captioner.eval()
    log_probs, whole, tokens = captioner(sampled).detach(), 0.0, sampled.tokens
    assert not (tokens[:, 1:] == EOS).all(1).any()
    rewards = worth(tokens, tokens)
    allowed = torch.ones(VOCABULARY, dtype=torch.bool)
    allowed[[PAD, BOS, UNK]] = False
    for caption in range(6):
        for t in range(int((tokens[caption, 1:] != PAD).sum())):
            p = log_probs[caption, t] - log_probs[caption, t][allowed].logsumexp(0)
            whole -= float(rewards[caption] * p[tokens[caption, t + 1]])
        whole += 0.2 * distance_by_hand(captioner, sampled, caption)
    assert total == pytest.approx(whole / token_count(sampled), rel=1e-4)


def test_samples_are_forced_through_the_captioner_once_for_both_terms() -> None:
    captioner, batch = toy_recnet(dropout=0.3).train(), toy_batch(videos=2, captions=1)
    passes: list[int] = []
    assert captioner.reconstructor is not None
    captioner.reconstructor.register_forward_hook(lambda *_: passes.append(10))
    policy = PolicyGradient(lambda samples, _: (samples == 5).sum(1).float(), {"v0": 0, "v1": 1}, 2, 4, NoBaseline())
    seen = captioner.encoder.register_forward_hook(lambda *_: passes.append(1))  # type: ignore[attr-defined]
    Objective(policy=(1.0, policy), rebuild=(0.2, SampledReconstructionLoss("local", policy)))(captioner, batch)
    seen.remove()
    assert sum(passes) == 10 + 2, "one to draw, one to learn from"


def test_distances_worked_out_by_hand() -> None:
    # Video 0 has two real frames (3, 4) and (0, 0), and one that is not; video 1 has one.
    rows = torch.tensor([[[3.0, 4.0], [0.0, 0.0], [9.0, 9.0]], [[1.0, 1.0], [9.0, 9.0], [9.0, 9.0]]])
    frames = torch.tensor([[True, True, False], [True, False, False]])
    target = ReconstructionTarget(rows.masked_fill(~frames.unsqueeze(-1), 0.0), frames.unsqueeze(-1))
    video_index = torch.tensor([0, 1, 0])
    rebuilt = Reconstruction(torch.zeros(3, 3, 2), frames[video_index], length=3, per_frame=True)
    assert local_distance(rebuilt, target, video_index).tolist() == pytest.approx([2.5, 2**0.5, 2.5])  # (5 + 0) / 2
    assert global_distance(rebuilt, target, video_index).tolist() == pytest.approx([2.5, 2**0.5, 2.5])  # |(1.5, 2)|
    rebuilt = replace(rebuilt, rows=torch.ones(3, 3, 2))
    by_frame = [(13**0.5 + 2**0.5) / 2, 0.0, (13**0.5 + 2**0.5) / 2]
    assert local_distance(rebuilt, target, video_index).tolist() == pytest.approx(by_frame)
    assert global_distance(rebuilt, target, video_index).tolist() == pytest.approx([1.25**0.5, 0.0, 1.25**0.5])


@pytest.mark.parametrize(
    ("reconstructor", "which"), [("global", "global"), ("both", "both"), ("local", "local"), ("transpose", "local")]
)
def test_the_loss_equals_a_loop_over_captions_and_frames(reconstructor: str, which: str) -> None:
    captioner, batch = toy_recnet("sa_lstm", reconstructor), toy_batch()
    assert batch.video_index is not None
    rebuilt = captioner.reconstruct(batch)
    video = np.concatenate([array(batch.features[name]) for name in SIZES], axis=2)
    losses = []
    for n, b in enumerate(batch.video_index.tolist()):
        frames = range(int(batch.masks["rgb"][b].sum()))
        z = array(rebuilt.rows[n])[array(rebuilt.mask[n]) > 0]
        loss = 0.0
        if which != "local":  # eq. 8
            loss += float(np.sqrt(((z.mean(0) - video[b, frames].mean(0)) ** 2).sum()))
        if which != "global":  # eq. 12
            loss += sum(float(np.sqrt(((z[j] - video[b, j]) ** 2).sum())) for j in frames) / len(frames)
        losses.append(loss)
    found = ReconstructionLoss(which)(captioner, batch).item()  # type: ignore[arg-type]
    assert found == pytest.approx(sum(losses) / token_count(batch), rel=1e-5)


@pytest.mark.parametrize("base", ["sa_lstm", "s2vt"])
@pytest.mark.parametrize("reconstructor", ["global", "both"])
def test_padded_words_and_frames_play_no_part(base: str, reconstructor: str) -> None:
    captioner, batch = toy_recnet(base, reconstructor), toy_batch()
    assert batch.tokens is not None
    term = ReconstructionLoss(reconstructor)  # type: ignore[arg-type]
    nothing = {name: torch.full((4, 2, size), torch.nan) for name, size in SIZES.items()}
    padded = replace(
        batch,
        tokens=torch.cat([batch.tokens, torch.full((8, 3), PAD)], 1),
        features={name: torch.cat([x, nothing[name]], 1) for name, x in batch.features.items()},
        masks={name: torch.cat([x, torch.zeros(4, 2, dtype=torch.bool)], 1) for name, x in batch.masks.items()},
    )
    assert term(captioner, padded).item() == pytest.approx(term(captioner, batch).item(), rel=1e-5)


def test_a_feature_that_a_video_lacks_is_not_asked_for() -> None:
    captioner, batch = toy_recnet(reconstructor="both"), toy_batch(videos=1, captions=1)
    batch.masks["motion"][:] = False
    batch.features["motion"][:] = torch.nan
    rebuilt = captioner.reconstruct(batch).rows[0, :, :6]
    frames = int(batch.masks["rgb"].sum())
    expected = (rebuilt[:frames] - batch.features["rgb"][0, :frames]).norm(dim=1).mean().item() / token_count(batch)
    assert ReconstructionLoss("local")(captioner, batch).item() == pytest.approx(expected, rel=1e-5)


def test_a_feature_that_the_whole_batch_lacks_may_have_any_length() -> None:
    captioner, batch = toy_recnet(reconstructor="both"), toy_batch()
    batch.masks["motion"][:] = False
    short = replace(
        batch,
        features=batch.features | {"motion": torch.zeros(4, 1, 4)},
        masks=batch.masks | {"motion": torch.zeros(4, 1, dtype=torch.bool)},
    )
    term = ReconstructionLoss("both")
    assert term(captioner, short).item() == pytest.approx(term(captioner, batch).item(), rel=1e-6)


def test_rows_that_follow_each_other_in_time_are_rebuilt_in_that_order() -> None:
    reconstructor = Reconstructor({"a": 2, "b": 2}, "time", GlobalReconstructor(1, 2))
    features = {"a": torch.randn(1, 2, 2), "b": torch.randn(1, 1, 2)}
    masks = {"a": torch.tensor([[True, False]]), "b": torch.tensor([[True]])}
    target = reconstructor.target(Batch(("v",), features, masks), length=3)
    assert torch.equal(target.rows[0, [0, 2]], torch.stack([features["a"][0, 0], features["b"][0, 0]]))
    assert target.valid[0, :, 0].tolist() == [True, False, True]


@pytest.mark.parametrize("reconstructor", ["global", "both", "transpose"])
def test_a_video_without_any_feature_counts_for_nothing_and_gives_finite_gradients(reconstructor: str) -> None:
    captioner, batch = toy_recnet(reconstructor=reconstructor), toy_batch(videos=3, captions=1)
    term = ReconstructionLoss("global" if reconstructor == "global" else "both")
    assert batch.tokens is not None and batch.video_index is not None
    others = replace(batch, tokens=batch.tokens[[0, 2]], video_index=batch.video_index[[0, 2]])
    expected = term(captioner, others).item() * token_count(others) / token_count(batch)
    for name in SIZES:
        batch.features[name][1] = torch.nan
        batch.masks[name][1] = False
    loss = term(captioner, batch)
    loss.backward()
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    assert all(torch.isfinite(p.grad).all() for p in captioner.parameters() if p.grad is not None)


def test_the_gradient_reaches_decoder_and_encoder() -> None:
    captioner = toy_recnet()
    ReconstructionLoss("local")(captioner, toy_batch()).backward()
    for part in ("encoder.", "decoder.gates_from_past", "reconstructor."):
        reached = [p.grad for name, p in captioner.named_parameters() if name.startswith(part)]
        assert any(grad is not None and bool(grad.abs().sum() > 0) for grad in reached)


def test_the_terms_of_an_objective_look_at_one_pass() -> None:
    captioner, batch = toy_recnet(reconstructor="both"), toy_batch()
    encoded: list[int] = []
    captioner.encoder.register_forward_hook(lambda *_: encoded.append(1))  # type: ignore[attr-defined]
    assert captioner.reconstructor is not None
    captioner.reconstructor.register_forward_hook(lambda *_: encoded.append(10))
    terms: dict[str, Term] = {"xe": CrossEntropy(), "mean": ReconstructionLoss("global"), "frames": ReconstructionLoss("local")}
    total, losses = Objective(xe=(1.0, terms["xe"]), mean=(0.2, terms["mean"]), frames=(0.1, terms["frames"]))(captioner, batch)
    assert sum(encoded) == 11
    apart = {name: term(captioner, batch).item() for name, term in terms.items()}
    assert sum(encoded) == 11 + 1 + 11 + 11
    assert {name: loss.item() for name, loss in losses.items()} == pytest.approx(apart, rel=1e-6)
    assert total.item() == pytest.approx(apart["xe"] + 0.2 * apart["mean"] + 0.1 * apart["frames"], rel=1e-6)


def test_what_is_shared_ends_with_the_step_and_is_never_anothers() -> None:
    captioner, batch = toy_recnet(), toy_batch()
    with captioner.sharing():
        first = captioner.teacher_forced_pass(batch)
        assert captioner.teacher_forced_pass(batch) is first
        assert captioner.teacher_forced_pass(replace(batch)) is not first
        with torch.no_grad():
            assert not captioner.teacher_forced_pass(batch).logits.requires_grad
        assert captioner.teacher_forced_pass(batch) is first
    assert captioner.teacher_forced_pass(batch) is not first


def test_what_does_not_fit_is_refused_with_a_remedy() -> None:
    batch = toy_batch()
    with pytest.raises(ValueError, match=r"local reconstruction loss compares frame by frame.*'transpose'"):
        ReconstructionLoss("local")(toy_recnet(reconstructor="global"), batch)
    with pytest.raises(ValueError, match="no reconstructor"):
        ReconstructionLoss("global")(toy_captioner(), batch)

    class WithoutStates(torch.nn.Module):
        def prepare(self, memory: Memory) -> Memory:
            return memory

    captioner = toy_recnet()
    captioner.decoder = WithoutStates()  # type: ignore[assignment]
    with pytest.raises(TypeError, match="WithoutStates does not return the states"):
        captioner.reconstruct(batch)
