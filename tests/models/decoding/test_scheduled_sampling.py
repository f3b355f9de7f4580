"""Scheduled sampling: the schedule, the mixture word by word, and that it costs nothing when it is off."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from pydantic import ValidationError

from models.captioner import Captioner
from models.captioners.recnet.reconstruction_loss import ReconstructionLoss
from models.decoding.scheduled_sampling import ALWAYS_TRUE, ScheduledSampling, mix_tokens
from models.losses.cross_entropy import CrossEntropy, DiscriminativeCrossEntropy
from models.training.objective import Objective
from models.types import BOS, EOS, PAD, Batch, Memory, State
from tests.models.captioners.captioner_checks import check_it_learns_eight_clips_by_heart
from tests.models.captioners.toy_captioners import toy_glrg, toy_recnet
from tests.models.toy_captions import VOCABULARY, toy_batch, toy_captioner

UP_AND_DOWN = ScheduledSampling(points=((0, 0.5), (4, 1.0), (6, 0.8)))


def test_the_schedule_goes_in_straight_lines_and_is_flat_outside() -> None:
    found = [UP_AND_DOWN.at(epoch) for epoch in range(9)]
    assert found == pytest.approx([0.5, 0.625, 0.75, 0.875, 1.0, 0.9, 0.8, 0.8, 0.8])
    assert ScheduledSampling(points=((3, 0.2), (4, 0.4))).at(0) == 0.2
    assert UP_AND_DOWN.at(4) == 1.0 and ALWAYS_TRUE.at(100) == 1.0


@pytest.mark.parametrize(
    ("points", "message"), [(((3, 0.5), (3, 1.0)), "must rise"), (((-1, 0.5),), "must rise"), (((0, 1.2),), "no probabilities")]
)
def test_a_schedule_that_makes_no_sense_is_refused(points: tuple[tuple[int, float], ...], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ScheduledSampling(points=points)


def memory_of(captioner: Captioner, batch: Batch) -> Memory:
    assert batch.video_index is not None
    return captioner.encode(batch.features, batch.masks).select(batch.video_index)


@pytest.mark.parametrize("captioner", [toy_captioner(), toy_glrg(), toy_recnet("s2vt")])
def test_without_any_truth_the_captioner_follows_its_own_likeliest_words(captioner: Captioner) -> None:
    batch = toy_batch()
    assert batch.tokens is not None
    tokens, memory = batch.tokens, memory_of(captioner, batch)
    logits, words = captioner.word_logits(batch, truth=0.0)
    own, expected = tokens.clone(), []
    state = captioner.decoder.start(memory)
    for t in range(tokens.shape[1] - 1):
        said, state, _ = captioner.decoder.step(own[:, t], state, memory)
        expected.append(said)
        said = said.clone()
        said[:, [PAD, BOS]] = -torch.inf
        own[:, t + 1] = torch.where(tokens[:, t + 1] == PAD, PAD, said.argmax(-1))
    real = tokens[:, 1:] != PAD
    assert torch.allclose(logits, torch.stack(expected, 1)[real], atol=1e-4)
    assert torch.equal(words, tokens[:, 1:][real])  # what is to be said stays the truth
    assert not torch.equal(logits, captioner.word_logits(batch)[0])


class _Parrot:
    """A decoder that always finds word 9 likeliest, BOS and PAD even more."""

    def prepare(self, memory: Memory) -> Memory:
        return memory

    def start(self, memory: Memory) -> State:
        return ()

    def step(
        self, token: torch.Tensor, state: State, memory: Memory, wanted: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, State, None]:
        logits = torch.zeros(len(token if wanted is None else wanted), VOCABULARY)
        logits[:, 9], logits[:, [PAD, BOS]] = 5.0, 9.0
        return logits, state, None

    def forced(self, tokens: torch.Tensor, memory: Memory, real: torch.Tensor | None = None) -> torch.Tensor:
        raise AssertionError("mixing words forces nothing")


NOTHING = Memory(torch.zeros(2000, 1, 1), torch.ones(2000, 1, dtype=torch.bool), torch.zeros(2000, 1))


@pytest.mark.parametrize("truth", [0.25, 0.9])
def test_each_word_is_true_with_its_probability_and_on_its_own(truth: float) -> None:
    torch.manual_seed(0)
    tokens = torch.full((2000, 8), 5)
    tokens[:, 0], tokens[:, -1] = BOS, EOS
    mixed = mix_tokens(_Parrot(), tokens, NOTHING, truth, "argmax")
    assert (mixed[:, 0] == BOS).all() and (mixed[:, -1] == EOS).all()
    middle = mixed[:, 1:-1]
    assert ((middle == 5) | (middle == 9)).all()
    true = (middle == 5).float()
    # 2,000 draws a step: 5 standard deviations are 0.056 at most
    assert true.mean(0).tolist() == pytest.approx([truth] * 6, abs=0.056)
    assert abs(torch.corrcoef(true.T) - torch.eye(6)).max() < 0.12


def test_a_drawn_word_follows_the_decoders_distribution_and_padding_stays() -> None:
    torch.manual_seed(0)
    tokens = torch.full((2000, 4), 5)
    tokens[:, 0], tokens[:, -1] = BOS, PAD
    tokens[1000:, 2] = PAD
    mixed = mix_tokens(_Parrot(), tokens, NOTHING, 0.0, "sample")
    expected = torch.softmax(torch.tensor([5.0] + [0.0] * (VOCABULARY - 3)), 0)[0].item()
    assert (mixed[:, 1] == 9).float().mean().item() == pytest.approx(expected, abs=0.03)
    assert not ((mixed[:, 1] == PAD) | (mixed[:, 1] == BOS)).any() and len(mixed[:, 1].unique()) > 5
    assert (mixed[1000:, 2] == PAD).all() and (mixed[:1000, 2] != PAD).all()


def test_the_same_seed_gives_the_same_mixture() -> None:
    captioner, batch = toy_captioner(), toy_batch()
    found = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        found.append(captioner.word_logits(batch, truth=0.5, own="sample")[0])
    assert torch.equal(found[0], found[1]) and not torch.equal(found[0], found[2])


def test_truth_alone_draws_nothing_and_steps_through_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    captioner, batch = toy_captioner(), toy_batch()
    assert batch.tokens is not None
    plain = captioner.decoder.teacher_forced(batch.tokens, memory_of(captioner, batch), batch.valid)
    monkeypatch.setattr(captioner.decoder, "step", None)
    before = torch.get_rng_state()
    assert torch.equal(captioner.word_logits(batch, truth=1.0)[0], plain)
    assert torch.equal(torch.get_rng_state(), before)


def test_an_objective_takes_its_terms_to_the_epoch() -> None:
    xe, dxe, rebuild = (CrossEntropy(0.1, UP_AND_DOWN), DiscriminativeCrossEntropy(0.0, UP_AND_DOWN), ReconstructionLoss("local"))
    objective = Objective(xe=(1.0, xe), dxe=(0.5, dxe), rebuild=(0.2, rebuild), plain=(2.0, lambda model, batch: model))
    later = objective.at(5)
    assert [weight for weight, _ in later.terms.values()] == [1.0, 0.5, 0.2, 2.0]
    assert later.terms["plain"][1] is objective.terms["plain"][1]
    for name in ("xe", "dxe", "rebuild"):
        assert later.terms[name][1].epoch == 5 and objective.terms[name][1].epoch == 0  # type: ignore[attr-defined]
    assert later.terms["xe"][1].label_smoothing == 0.1  # type: ignore[attr-defined]


@pytest.mark.parametrize("term", [CrossEntropy, DiscriminativeCrossEntropy])
def test_a_loss_feeds_what_its_epoch_says(term: type[CrossEntropy] | type[DiscriminativeCrossEntropy]) -> None:
    captioner, batch = toy_captioner(), replace(toy_batch(), weights=torch.ones(8))
    scheduled = term(sampling=ScheduledSampling(points=((0, 1.0), (1, 0.0))))
    logits, words = captioner.word_logits(batch, truth=0.0)
    assert scheduled(captioner, batch).item() == pytest.approx(CrossEntropy()(captioner, batch).item(), rel=1e-6)
    expected = torch.nn.functional.cross_entropy(logits, words).item()
    assert scheduled.at(1)(captioner, batch).item() == pytest.approx(expected, rel=1e-6)


def test_reconstruction_and_cross_entropy_share_a_mixed_pass() -> None:
    captioner, batch = toy_recnet(), toy_batch()
    sampling = ScheduledSampling(points=((0, 0.5),), own="sample")
    torch.manual_seed(0)
    _, losses = Objective(xe=(1.0, CrossEntropy(sampling=sampling)), rebuild=(0.1, ReconstructionLoss("local", sampling)))(
        captioner, batch
    )
    torch.manual_seed(0)
    assert ReconstructionLoss("local", sampling)(captioner, batch).item() == pytest.approx(losses["rebuild"].item())


def test_a_captioner_learns_by_heart_with_a_schedule() -> None:
    torch.manual_seed(0)
    captioner = toy_captioner(embedding=16, hidden=32)
    xe = CrossEntropy(sampling=ScheduledSampling(points=((0, 0.7),)))
    check_it_learns_eight_clips_by_heart(captioner, Objective(xe=(1.0, xe)))
