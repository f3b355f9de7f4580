"""VRE: its equations by hand, two steps with one decoder, what must not matter to it, and that it learns."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from models.captioners.vre.captioner import RefocusDecoder, VreCaptioner, VreOptions, build_vre
from models.captioners.vre.encoder import KeyFrameGru, ProductScores, RefocusEncoder
from models.captioners.vre.key_frame_loss import RefocusLoss, RewardMemory, StepLoss
from models.decoding.greedy_and_sampling import greedy
from models.decoding.scheduled_sampling import ScheduledSampling
from models.losses.cross_entropy import CrossEntropy
from models.training.loop import FitOptions, fit
from models.training.objective import Objective
from models.types import BOS, PAD, Batch, Memory
from tests.models.toy_captions import VOCABULARY, toy_batch

SIZES = {"time": 6, "space": 5, "sound": 3, "key": 1}
VARIANTS: dict[str, dict[str, Any]] = {
    "features only": {"steps": 0, "spatial": "space"},
    "one step, time alone": {"steps": 1},
    "one step": {"steps": 1, "spatial": "space", "audio": "sound"},
    "full": {"spatial": "space", "audio": "sound"},
    "silent": {"spatial": "space"},
    "given": {"spatial": "space", "audio": "sound", "key_frames": "key"},
    "normalised, no attention over time": {"audio": "sound", "batch_norm": True, "temporal_attention": False},
}
every_variant = pytest.mark.parametrize("variant", VARIANTS)


def _captioner(variant: str = "full", scale: float = 2.0, **changes: Any) -> VreCaptioner:
    values: dict[str, Any] = {"temporal": "time", "hidden": 8, "dropout": 0.0} | VARIANTS[variant] | changes
    torch.manual_seed(0)
    captioner = build_vre(VreOptions.model_validate(values), SIZES, VOCABULARY)
    with torch.no_grad():
        for parameter in captioner.parameters():
            parameter.mul_(scale)
    captioner.eval()
    return captioner


def _batch(videos: int = 4, captions: int = 2, rows: int = 6, seed: int = 0) -> Batch:
    """Videos of 1 to `rows` frames; every third is silent."""
    random = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, rows + 1, (videos, 1), generator=random)
    features = {
        name: torch.randn(videos, length, SIZES[name], generator=random)
        for name, length in (("time", rows), ("space", 4), ("sound", 1))
    }
    features["key"] = ((lengths - 1) * torch.rand(videos, 1, generator=random)).round().unsqueeze(-1)
    masks = {
        "time": torch.arange(rows) < lengths,
        "space": torch.ones(videos, 4, dtype=torch.bool),
        "sound": torch.arange(videos).unsqueeze(1) % 3 != 2,
        "key": torch.ones(videos, 1, dtype=torch.bool),
    }
    return replace(toy_batch(videos, captions, seed=seed), features=features, masks=masks)


def _set(module: torch.nn.Module, **values: list[Any]) -> None:
    with torch.no_grad():
        for name, value in values.items():
            module.get_parameter(name.replace("__", ".")).copy_(torch.tensor(value))


def test_equation_8_by_hand() -> None:
    scores = ProductScores(query=1, values=2, attention=2)
    _set(scores, query__weight=[[1.0], [-2.0]], key__weight=[[1.0, 0.5], [0.0, 1.0]])
    _set(scores, score__weight=[[2.0, 3.0]], score__bias=[0.25])
    rows, o = [(0.3, 0.4), (-0.6, 1.0)], 0.7
    found = scores(scores.query(torch.tensor([[o]])), scores.key(torch.tensor([rows])))
    by_hand = [2 * math.tanh(o * (a + 0.5 * b)) + 3 * math.tanh(-2 * o * b) + 0.25 for a, b in rows]
    assert found[0].tolist() == pytest.approx(by_hand, abs=1e-6)


def test_algorithm_1_and_equations_9_to_11_part_by_part() -> None:
    captioner, batch = _captioner(), _batch(videos=6)
    encoder = captioner.encoder
    assert isinstance(encoder, RefocusEncoder)
    memory = encoder(batch.features, batch.masks)
    keys = set()
    for i in range(6):
        rows = batch.features["time"][i, batch.masks["time"][i]].unsqueeze(0)
        K = torch.tensor([rows.shape[1]])
        sound = batch.features["sound"][i] * batch.masks["sound"][i]
        h1 = encoder.around(rows, K, K // 2)
        o1 = torch.tanh(encoder.represent(torch.cat([h1, sound], 1)))
        alpha = torch.softmax(encoder.refocus(encoder.refocus.query(o1), encoder.refocus.key(rows)), -1)
        key = alpha.argmax(-1)
        h2 = encoder.around(rows, K, key)
        o2 = torch.tanh(encoder.represent(torch.cat([torch.tanh(encoder.merge(torch.cat([h1, h2], 1))), sound], 1)))
        assert memory.extras["key_frame"][i] == key
        assert torch.allclose(torch.softmax(memory.extras["focus"][i, : int(K)], -1), alpha[0], atol=1e-6)
        assert torch.allclose(memory.extras["first"][i], o1[0], atol=1e-6)
        assert torch.allclose(memory.summary[i], o2[0], atol=1e-6)
        keys.add((int(key), int(K) // 2))
    assert any(key != middle for key, middle in keys)


def test_the_first_key_frame_is_the_middle_one(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[int]] = []
    run = KeyFrameGru.forward

    def listen(net: KeyFrameGru, rows: torch.Tensor, lengths: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        asked.append(key.tolist())
        return run(net, rows, lengths, key)

    monkeypatch.setattr(KeyFrameGru, "forward", listen)
    lengths = torch.tensor([[20], [5], [2], [1]])
    masks = {"time": torch.arange(20) < lengths}
    _captioner("one step, time alone").encode({"time": torch.zeros(4, 20, 6)}, masks)
    assert asked == [[10, 2, 1, 0]]


def test_equations_12_to_16_and_algorithm_2_by_hand() -> None:
    """One step of the decoder with every size 1, from its weights, number by number."""
    torch.manual_seed(0)
    decoder = RefocusDecoder(VOCABULARY, temporal=1, spatial=1, audio=1, hidden=1, dropout=0)
    frames, places, sound, o = [0.5, -1.0], [2.0, 0.3, 7.0], 0.4, 0.6
    memory = Memory(
        torch.tensor([[[x] for x in frames]]),
        torch.ones(1, 2, dtype=torch.bool),
        torch.tensor([[o]]),
        {
            "spatial": torch.tensor([[[x] for x in places]]),
            "spatial_mask": torch.tensor([[True, True, False]]),
            "audio": torch.tensor([[sound]]),
        },
    )
    memory = decoder.prepare(memory)
    w = {name: p.detach().flatten().tolist() for name, p in decoder.named_parameters()}

    def attend(rows: list[float], which: str, from_video: float, h: float) -> tuple[float, list[float]]:
        query = from_video * o + w[f"{which}.query.weight"][0] * h  # W_h [o, h]
        a = [
            w[f"{which}.score.weight"][0] * math.tanh(query * w[f"{which}.key.weight"][0] * v) + w[f"{which}.score.bias"][0]
            for v in rows
        ]
        alpha = [math.exp(x) / sum(math.exp(y) for y in a) for x in a]
        return sum(p * v for p, v in zip(alpha, rows, strict=True)), alpha

    def sigmoid(x: float) -> float:
        return 1 / (1 + math.exp(-x))

    h, c = 0.0, o  # the state starts with zero and o
    state = decoder.start(memory)
    for token in (BOS, 5):
        v_t, alpha = attend(frames, "over_time", w["query_from_video.weight"][0], h)
        v_s, _ = attend(places[:2], "over_space", w["query_from_video.weight"][1], h)
        word = o if token == BOS else w["embed.weight"][token]  # o in the first word's place
        gates = [
            w["gates_from_word.weight"][g] * word
            + w["gates_from_word.bias"][g]
            + w["gates_from_audio.weight"][g] * sound
            + sum(w["gates_from_past.weight"][3 * g + j] * x for j, x in enumerate((v_t, v_s, h)))
            for g in range(4)
        ]
        c = sigmoid(gates[1]) * c + sigmoid(gates[0]) * math.tanh(gates[2])
        h = sigmoid(gates[3]) * math.tanh(c)
        logits, state, weights = decoder.step(torch.tensor([token]), state, memory)
        assert weights is not None and weights[0].tolist() == pytest.approx(alpha, abs=1e-6)
        assert [state[0].item(), state[1].item()] == pytest.approx([h, c], abs=1e-6)
        expected = [a * h + b for a, b in zip(w["predict.weight"], w["predict.bias"], strict=True)]
        assert logits[0].tolist() == pytest.approx(expected, abs=1e-6)


@every_variant
def test_forcing_a_caption_equals_stepping_through_it(variant: str) -> None:
    captioner, batch = _captioner(variant), _batch()
    assert batch.tokens is not None and batch.video_index is not None
    forced = captioner(batch)
    memory = captioner.encode(batch.features, batch.masks).select(batch.video_index)
    state = captioner.decoder.start(memory)
    for t in range(batch.tokens.shape[1] - 1):
        logits, state, weights = captioner.decoder.step(batch.tokens[:, t], state, memory)
        assert torch.allclose(torch.log_softmax(logits, -1), forced[:, t], atol=1e-5)
        if captioner.decoder.over_time is None:  # type: ignore[attr-defined]
            assert weights is None
        else:
            assert weights is not None and not weights[~memory.mask].any()


@every_variant
def test_eight_videos_at_once_equal_eight_times_one_without_their_padding(variant: str) -> None:
    captioner, batch = _captioner(variant), _batch(videos=8, captions=1)
    assert batch.tokens is not None
    together = captioner(batch)
    for i in range(8):
        rows = {name: max(1, int(mask[i].sum())) for name, mask in batch.masks.items()}
        length = int((batch.tokens[i] != PAD).sum())
        alone = Batch(
            (batch.video_ids[i],),
            {name: x[i : i + 1, : rows[name]] for name, x in batch.features.items()},
            {name: x[i : i + 1, : rows[name]] for name, x in batch.masks.items()},
            batch.tokens[i : i + 1, :length],
            torch.zeros(1, dtype=torch.int64),
        )
        assert torch.allclose(together[i, : length - 1], captioner(alone)[0], atol=1e-5)


def test_what_stands_in_padding_does_not_matter() -> None:
    captioner, batch = _captioner(), _batch()
    batch.masks["space"][0, 2:] = False
    before = captioner(batch)
    for name, mask in batch.masks.items():
        batch.features[name][~mask] = math.nan
    assert torch.equal(captioner(batch), before)


def test_a_silent_video_is_one_whose_sound_is_zero() -> None:
    captioner, batch = _captioner(), _batch()
    batch.masks["sound"][:] = False
    silent = captioner(batch)
    batch.masks["sound"][:] = True
    assert not torch.allclose(captioner(batch), silent)
    batch.features["sound"].zero_()
    assert torch.allclose(captioner(batch), silent, atol=1e-6)


@every_variant
def test_missing_features_give_numbers_and_gradients(variant: str) -> None:
    captioner, batch = _captioner(variant), _batch()
    for mask in batch.masks.values():
        mask[1] = False
    loss = CrossEntropy()(captioner, batch)
    loss.backward()
    assert torch.isfinite(loss)
    assert all(torch.isfinite(p.grad).all() for p in captioner.parameters() if p.grad is not None)


def test_both_steps_losses_are_those_of_each_step_by_itself() -> None:
    captioner, batch = _captioner(), _batch()
    assert batch.tokens is not None and batch.video_index is not None
    found = captioner.step_losses(batch)
    targets, expected = batch.tokens[:, 1:], []
    for steps in (1, 2):
        captioner.active_steps = steps
        chosen = captioner(batch).gather(2, targets.unsqueeze(2)).squeeze(2)
        expected.append(-(chosen * (targets != PAD)).sum(1))
    assert torch.allclose(found.first, expected[0], atol=1e-4)
    assert torch.allclose(found.second[:, 0], expected[1], atol=1e-4)
    assert not torch.allclose(found.first, found.second[:, 0])
    memory = captioner.encode(batch.features, batch.masks).select(batch.video_index)
    assert torch.equal(found.key[:, 0], memory.extras["key_frame"]) and torch.equal(found.mask, memory.mask)


def test_key_frames_that_are_given_are_used() -> None:
    finder, batch = _captioner("full"), _batch(videos=8)
    found = finder.encode(batch.features, batch.masks).extras["key_frame"]
    assert found.unique().numel() > 1
    keeper = _captioner("given")
    keeper.load_state_dict({k: v for k, v in finder.state_dict().items() if "refocus" not in k})
    batch.features["key"] = found.float().view(-1, 1, 1)
    assert torch.allclose(keeper(batch), finder(batch), atol=1e-6)
    batch.features["key"] = torch.full((8, 1, 1), 99.0)  # no further than the last frame
    kept = keeper.encode(batch.features, batch.masks).extras["key_frame"]
    assert torch.equal(kept, batch.masks["time"].sum(1) - 1)
    batch.masks["key"][:] = False
    kept = keeper.encode(batch.features, batch.masks).extras["key_frame"]
    assert torch.equal(kept, batch.masks["time"].sum(1) // 2)


def _joint(rewards: RewardMemory) -> Objective:
    return Objective(step1=(1.0, StepLoss(1)), step2=(1.0, StepLoss(2)), refocus=(0.03, RefocusLoss(rewards)))


def test_the_joint_objective_adds_its_three_terms_from_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    captioner, batch, rewards = _captioner(), _batch(), RewardMemory()
    passes: list[Memory] = []
    encode = VreCaptioner.encode

    def count(model: VreCaptioner, *given: dict[str, torch.Tensor]) -> Memory:
        passes.append(encode(model, *given))
        return passes[-1]

    monkeypatch.setattr(VreCaptioner, "encode", count)
    total, terms = _joint(rewards)(captioner, batch)
    assert len(passes) == 1 and terms["refocus"] == 0  # nothing was remembered yet
    losses = captioner.step_losses(batch)
    assert total.item() == pytest.approx((losses.first.mean() + losses.second.mean()).item(), rel=1e-5)
    kept = rewards.state()
    expected = (losses.first - losses.second[:, 0]).tolist()
    assert [kept[id] for id in batch.caption_ids] == [(0, pytest.approx(reward, abs=1e-4)) for reward in expected]
    worse = RewardMemory({id: (0, reward - 1) for id, (_, reward) in kept.items()})
    again, terms = _joint(worse).at(1)(captioner, batch)
    assert again.item() == pytest.approx(total.item() + 0.03 * terms["refocus"].item(), rel=1e-5)
    assert terms["refocus"] > 0


def test_only_the_refocus_loss_teaches_the_refocusing_module() -> None:
    captioner, batch = _captioner(), _batch()
    weights = list(captioner.encoder.refocus.parameters())  # type: ignore[attr-defined]
    CrossEntropy()(captioner, batch).backward()
    assert all(p.grad is None or not p.grad.any() for p in weights)
    RefocusLoss(RewardMemory(dict.fromkeys(batch.caption_ids, (0, -10.0))), epoch=1)(captioner, batch).backward()
    assert weights[0].grad is not None and weights[0].grad.any()


def test_scheduled_sampling_feeds_own_words_to_both_steps() -> None:
    captioner, batch = _captioner(), _batch()
    torch.manual_seed(0)
    mixed, true = captioner.step_losses(batch, truth=0.0), captioner.step_losses(batch)
    assert not torch.allclose(mixed.first, true.first) and not torch.allclose(mixed.second, true.second)
    schedule = ScheduledSampling(points=((0, 1.0), (1, 0.0)))
    assert StepLoss(1, schedule)(captioner, batch).item() == pytest.approx(true.first.mean().item(), rel=1e-5)
    assert StepLoss(1, schedule).at(1)(captioner, batch).item() == pytest.approx(mixed.first.mean().item(), rel=1e-5)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValidationError, match="key frames matter in the second step"):
        VreOptions(temporal="time", key_frames="key", steps=1)
    with pytest.raises(ValidationError, match="only attention sees the frames"):
        VreOptions(temporal="time", temporal_attention=False, steps=0)
    with pytest.raises(ValueError, match="sound that are not there"):
        build_vre(VreOptions(temporal="time", audio="sound"), {"time": 6}, VOCABULARY)
    with pytest.raises(ValueError, match="built for 1 steps and cannot do 2"):
        _captioner("one step").active_steps = 2
    with pytest.raises(ValueError, match="but 1 are active"):
        _captioner("one step").step_losses(_batch())
    with pytest.raises(ValueError, match="key frames are given"):
        RefocusLoss(RewardMemory())(_captioner("given"), _batch())
    with pytest.raises(ValueError, match="has no sound"):
        batch = _batch()
        del batch.features["sound"]
        _captioner()(batch)


def test_its_options_say_what_it_reads_and_what_may_be_missing() -> None:
    options = VreOptions(temporal="time", spatial="space", audio="sound", key_frames="key")
    assert options.features == ("time", "space", "sound", "key") and options.optional_features == ("sound",)
    assert VreOptions(temporal="time").features == ("time",)


GOLDEN: dict[str, list[float]] = {
    "features only": [-1.91102, -1.91038, -1.65118, -2.53149, -2.29568],
    "one step, time alone": [-2.76277, -1.959, -3.59212, -2.01549, -3.36909],
    "one step": [-2.17455, -2.1421, -2.52244, -2.86129, -2.20737],
    "full": [-2.59475, -2.47388, -1.49411, -2.78423, -2.56152],
    "silent": [-1.90785, -3.05191, -1.82955, -3.25361, -2.57333],
    "given": [-2.597, -1.59265, -2.53086, -2.28979, -3.29373],
    "normalised, no attention over time": [-2.48066, -2.63008, -2.73633, -1.80188, -2.75507],
}


@every_variant
def test_log_probabilities_of_seeded_weights_are_those_on_record(variant: str) -> None:
    assert _captioner(variant)(_batch())[3, 1, :5].tolist() == pytest.approx(GOLDEN[variant], rel=1e-3)


class _Always:
    """The same batch at every step."""

    steps_per_epoch = 10

    def __init__(self, batch: Batch):
        self.batch = batch

    def __call__(self, epoch: int, skip: int) -> Any:
        return iter([self.batch] * (10 - skip))


@pytest.mark.parametrize("variant", ["features only", "one step", "full"])
def test_it_learns_eight_clips_by_heart(variant: str) -> None:
    batch = _batch(videos=8, captions=1)
    assert batch.tokens is not None
    captioner, how = _captioner(variant, scale=1.0, hidden=32), FitOptions(epochs=8, learning_rate=2e-2)
    objective = _joint(RewardMemory()) if variant == "full" else Objective(xe=(1.0, CrossEntropy()))
    losses = [progress.losses["total"] for progress in fit(captioner, objective, _Always(batch), how)]
    assert losses[-1] < 0.1 * losses[0]
    found = greedy(captioner.eval(), batch.features, batch.masks, max_length=5).tokens[:, 0]
    assert torch.equal(found, batch.tokens[:, 1:])
