"""Reconstruction losses in plain loops: masks, missing features, and one pass for all terms."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from models.captioners.recnet.reconstruction_loss import ReconstructionLoss, global_distance, local_distance
from models.captioners.recnet.reconstructors import GlobalReconstructor, Reconstruction, ReconstructionTarget, Reconstructor
from models.losses.cross_entropy import CrossEntropy
from models.training.objective import Objective, Term
from models.types import PAD, Batch, Memory
from tests.models.captioners.captioner_checks import array
from tests.models.captioners.toy_captioners import toy_recnet
from tests.models.toy_captions import SIZES, toy_batch, toy_captioner


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
    assert ReconstructionLoss(which)(captioner, batch).item() == pytest.approx(np.mean(losses), rel=1e-5)  # type: ignore[arg-type]


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
    expected = (rebuilt[:frames] - batch.features["rgb"][0, :frames]).norm(dim=1).mean().item()
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
    expected = term(captioner, others).item()
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
