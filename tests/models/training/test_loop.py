"""The training loop: exact resume from any step, validation that leaves no trace, and failures that say where."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from models.captioner import Captioner
from models.decoding.greedy_and_sampling import sample
from models.training.loop import FitOptions, NonFiniteLoss, Progress, TrainState, fit, learning_rate_at, restore, undisturbed
from models.training.objective import Objective
from models.types import Batch
from tests.models.toy_captions import toy_batch, toy_captioner
from tests.models.training.toy_training import OBJECTIVE, STEPS, ToyBatches, options


def fresh() -> Captioner:
    """Dropout on, so that every step depends on the random numbers before it."""
    return toy_captioner(dropout=0.3)


def stored_and_read(state: TrainState) -> TrainState:
    """What is left after a trip through numpy arrays and JSON, as checkpoints are stored."""
    arrays = {name: tensor.numpy().tobytes() for name, tensor in state.tensors.items()}
    tensors = {
        name: torch.from_numpy(np.frombuffer(arrays[name], t.numpy().dtype).reshape(t.shape).copy())
        for name, t in state.tensors.items()
    }
    return TrainState(tensors, json.loads(json.dumps(state.values)))


def run(how: FitOptions, state: TrainState | None = None) -> tuple[list[Progress], dict[str, Tensor], list[TrainState]]:
    model = fresh()
    torch.manual_seed(5)
    seen, states = [], []
    for progress in fit(model, OBJECTIVE, ToyBatches(), how, state):
        seen.append(progress)
        states.append(progress.snapshot())
    return seen, model.state_dict(), states


@pytest.mark.parametrize(("optimiser", "average"), [("adam", 0.0), ("adamw", 0.0), ("adadelta", 0.0), ("adam", 0.8)])
def test_going_on_from_any_step_equals_never_having_stopped(optimiser: str, average: float) -> None:
    how = options(optimiser=optimiser, ema_decay=average)
    seen, weights, states = run(how)
    assert [p.step for p in seen] == list(range(1, 13))
    for stop in (1, 3, 4, 6, 11):
        again, weights_again, states_again = run(how, stored_and_read(states[stop - 1]))
        assert [(p.epoch, p.step, p.losses, p.learning_rate, p.gradient_norm, p.end_of_epoch) for p in again] == [
            (p.epoch, p.step, p.losses, p.learning_rate, p.gradient_norm, p.end_of_epoch) for p in seen[stop:]
        ]
        assert weights.keys() == weights_again.keys()
        assert all(torch.equal(weights[name], weights_again[name]) for name in weights)
        last, last_again = states[-1], states_again[-1]
        assert last.values == last_again.values and last.tensors.keys() == last_again.tensors.keys()
        assert all(torch.equal(last.tensors[name], last_again.tensors[name]) for name in last.tensors)


def test_a_snapshot_is_a_copy_and_a_resume_leaves_it_alone() -> None:
    _, _, states = run(options())
    before = {name: tensor.clone() for name, tensor in states[2].tensors.items()}
    run(options(), states[2])
    assert all(torch.equal(before[name], tensor) for name, tensor in states[2].tensors.items())


def test_a_snapshot_holds_plain_tensors_and_numbers() -> None:
    _, _, states = run(options())
    state = states[5]
    assert state.values == {"epoch": 1, "batch": 2, "step": 6, "steps_per_epoch": STEPS}
    kinds = {name.split(".")[0] for name in state.tensors}
    assert kinds == {"model", "optimiser", "rng"}
    assert state.tensors["rng.cpu"].dtype == torch.uint8
    assert "optimiser.decoder.embed.weight.exp_avg" in state.tensors
    fresh().load_state_dict(state.named("model."))


def test_a_finished_training_yields_nothing_but_restores_the_weights() -> None:
    _, weights, states = run(options())
    again, restored, _ = run(options(), states[-1])
    assert again == [] and all(torch.equal(weights[name], restored[name]) for name in weights)


def test_validation_between_steps_leaves_no_trace() -> None:
    _, weights, _ = run(options())
    model = fresh()
    torch.manual_seed(5)
    for _ in fit(model, OBJECTIVE, ToyBatches(), options()):
        with undisturbed(model) as still:
            assert not still.training and not still.decoder.training  # type: ignore[attr-defined]
            batch = toy_batch()
            sample(still, batch.features, batch.masks, 4, n=3)
        assert model.training
    assert all(torch.equal(weights[name], tensor) for name, tensor in model.state_dict().items())


def test_the_kept_weights_are_the_running_mean_and_training_does_not_notice() -> None:
    _, plain, states = run(options())
    model = fresh()
    names = {name for name, p in model.named_parameters() if p.requires_grad}
    torch.manual_seed(5)
    expected = {name: tensor.double().clone() for name, tensor in model.state_dict().items()}
    for progress in fit(model, OBJECTIVE, ToyBatches(), options(ema_decay=0.5)):
        own = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        kept = min(0.5, progress.step / (progress.step + 9))
        for name in names:
            expected[name] = kept * expected[name] + (1 - kept) * own[name].double()
        with progress.averaged():
            found = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        assert all(torch.equal(own[name], tensor) for name, tensor in model.state_dict().items())
        assert all(torch.allclose(found[name].double(), expected[name], atol=1e-6) for name in names)
        assert any(not torch.equal(found[name], own[name]) for name in names)
    assert all(torch.equal(plain[name], tensor) for name, tensor in model.state_dict().items())
    assert not states[-1].named("mean."), "none are kept where none are asked for"


def test_undisturbed_keeps_a_part_that_was_frozen_in_eval_mode() -> None:
    model = fresh().train()
    model.encoder.eval()  # type: ignore[attr-defined]
    with pytest.raises(KeyError), undisturbed(model):
        torch.rand(3)
        raise KeyError
    assert model.training and not model.encoder.training  # type: ignore[attr-defined]


def test_ends_of_epochs_are_marked_and_the_loss_falls() -> None:
    seen, _, _ = run(options(epochs=12, schedule="constant"))
    assert [p.step for p in seen if p.end_of_epoch] == [STEPS * (n + 1) for n in range(12)]
    assert [p.epoch for p in seen[:5]] == [0, 0, 0, 0, 1]
    assert all(p.losses["total"] == p.losses["xe"] for p in seen)
    assert sum(p.losses["xe"] for p in seen[-4:]) < sum(p.losses["xe"] for p in seen[:4])


def test_a_loss_that_is_not_finite_names_the_videos_and_spares_the_weights() -> None:
    model = fresh()
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}

    class Broken(ToyBatches):
        def __call__(self, epoch: int, skip: int) -> Iterator[Batch]:
            for batch in super().__call__(epoch, skip):
                batch.features["rgb"][0, 0] = torch.nan
                yield batch

    with pytest.raises(NonFiniteLoss, match=r"loss is not finite at step 1 .*videos v0, v1, v2"):
        list(fit(model, OBJECTIVE, Broken(), options()))
    assert all(torch.equal(weights[name], tensor) for name, tensor in model.state_dict().items())


def test_a_gradient_that_is_not_finite_spares_the_weights() -> None:
    model = fresh()
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}

    def steep(captioner: Captioner, batch: Batch) -> Tensor:
        return (captioner.decoder.embed.weight.sum() * 0).sqrt()  # type: ignore[attr-defined]

    with pytest.raises(NonFiniteLoss, match="gradient is not finite"):
        list(fit(model, Objective(steep=(1.0, steep)), ToyBatches(), options()))
    assert all(torch.equal(weights[name], tensor) for name, tensor in model.state_dict().items())


def test_clipping_bounds_the_step_and_zero_turns_it_off() -> None:
    def first_step(clip: float) -> tuple[float, float]:
        model = toy_captioner()
        before = model.decoder.embed.weight.detach().clone()  # type: ignore[attr-defined]
        how = options(epochs=1, gradient_clip=clip, optimiser="adadelta", schedule="constant", warmup_steps=0, weight_decay=0)
        progress = next(iter(fit(model, OBJECTIVE, ToyBatches(), how)))
        after = model.decoder.embed.weight  # type: ignore[attr-defined]
        return progress.gradient_norm, (after - before).norm().item()

    (norm, free), (same_norm, bounded) = first_step(0.0), first_step(1e-4)
    assert norm == same_norm > 1e-4 and bounded < free / 10


def test_the_learning_rate_warms_up_and_then_follows_its_schedule() -> None:
    how = options(learning_rate=1.0, warmup_steps=4)
    rates = [learning_rate_at(step, 12, how) for step in range(12)]
    assert rates[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert rates[8] == pytest.approx(0.5) and rates[11] == pytest.approx(0.5 * (1 + math.cos(math.pi * 7 / 8)))
    constant = options(learning_rate=1.0, warmup_steps=0, schedule="constant")
    assert {learning_rate_at(step, 12, constant) for step in range(12)} == {1.0}


def test_a_snapshot_of_other_batches_is_refused() -> None:
    _, _, states = run(options())

    class Fewer(ToyBatches):
        steps_per_epoch = 3

    with pytest.raises(ValueError, match="taken with 4 batches per epoch, now there are 3"):
        list(fit(fresh(), OBJECTIVE, Fewer(), options(), states[0]))


def test_an_epoch_shorter_than_promised_and_an_empty_one_are_refused() -> None:
    class Short(ToyBatches):
        def __call__(self, epoch: int, skip: int) -> Iterator[Batch]:
            return iter([toy_batch()])

    with pytest.raises(ValueError, match="ended after 1 batches; 4 were promised"):
        list(fit(fresh(), OBJECTIVE, Short(), options()))

    class Empty(ToyBatches):
        steps_per_epoch = 0

    with pytest.raises(ValueError, match="nothing to train on"):
        list(fit(fresh(), OBJECTIVE, Empty(), options()))


def test_half_precision_is_never_on_for_a_cpu() -> None:
    seen: list[tuple[bool, torch.dtype]] = []

    def watched(captioner: Captioner, batch: Batch) -> Tensor:
        logits, _ = captioner.word_logits(batch)
        seen.append((torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"), logits.dtype))
        return logits.logsumexp(1).mean()

    list(fit(fresh(), Objective(watched=(1.0, watched)), ToyBatches(), options(epochs=1), half=True))
    assert seen == [(False, torch.float32)] * STEPS


def test_a_process_that_joins_has_the_weights_of_the_snapshot_and_chances_of_its_own() -> None:
    _, _, states = run(options())
    drawn = []
    for rank, state in enumerate([states[4], states[4], states[4].with_tensors({"rng.2.cpu": states[7].tensors["rng.cpu"]})]):
        model = fresh()
        optimiser = torch.optim.Adam(model.parameters())
        assert restore(state, model, optimiser, STEPS, rank) == 5
        assert all(torch.equal(state.named("model.")[name], tensor) for name, tensor in model.state_dict().items())
        drawn.append(torch.rand(4).tolist())
    torch.set_rng_state(states[7].tensors["rng.cpu"])
    assert drawn[2] == torch.rand(4).tolist(), "of its own, kept in the snapshot"
    assert drawn[0] != drawn[1] != drawn[2] != drawn[0]


def test_parts_of_a_batch_add_up_to_the_whole() -> None:
    """What `Ranks` does with losses: each part's mean, weighed by its share of tokens, is the mean of all tokens."""
    batch, model = toy_batch(videos=4), toy_captioner()
    tokens, video_index = batch.tokens, batch.video_index
    assert tokens is not None and video_index is not None
    parts = []
    for rows in ([0], [1, 2, 3]):
        mine = [n for n, video in enumerate(video_index.tolist()) if video in rows]
        part = Batch(
            tuple(batch.video_ids[row] for row in rows),
            {name: x[rows] for name, x in batch.features.items()},
            {name: x[rows] for name, x in batch.masks.items()},
            tokens[mine],
            torch.tensor([rows.index(video) for video in video_index[mine].tolist()]),
        )
        parts.append(OBJECTIVE.counted(model, part)["xe"])
    assert {count for _, count in parts} != {parts[0][1]}, "the parts differ in size"
    whole = sum(loss.item() * count for loss, count in parts) / sum(count for _, count in parts)
    assert whole == pytest.approx(OBJECTIVE(model, batch)[0].item(), rel=1e-5)
