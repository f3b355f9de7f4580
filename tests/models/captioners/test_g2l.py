"""G2L: its equations by hand, what must not matter to it, its variants, and that it learns."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from models.captioner import Captioner
from models.captioners.g2l.captioner import G2lOptions, build_g2l
from models.captioners.g2l.decoder import GruDecoder
from models.captioners.g2l.encoder import AlignedAttention, G2lAttention, G2lEncoder, ProductScore, RegionAttention, grouped
from models.decoding.greedy_and_sampling import greedy
from models.layers.attention import MeanContext
from models.layers.gumbel import SamplerOptions, TopKSampler
from models.losses.cross_entropy import CrossEntropy
from models.training.loop import FitOptions, fit
from models.training.objective import Objective
from models.types import PAD, Batch, Memory
from tests.models.toy_captions import VOCABULARY, toy_batch

SIZES = {"look": 6, "motion": 4, "things": 5}
VARIANTS: dict[str, dict[str, Any]] = {
    "base": {"regions": None, "alignment": False},
    "aligned": {"regions": None},
    "local 1": {"sampler": {"k": 1}},
    "local 2": {},
    "local 3": {"sampler": {"k": 3}},
    "argmax": {"sampler": {"kind": "argmax"}},
}
every_variant = pytest.mark.parametrize("variant", VARIANTS)


def _captioner(variant: str = "local 2", scale: float = 2.0, **changes: Any) -> Captioner:
    values: dict[str, Any] = {"frames": "look", "clips": "motion", "regions": "things"} | VARIANTS[variant]
    sizes = {"projection": 7, "attention": 6, "aligned": 5, "embedding": 4, "hidden": 8, "dropout": 0.0}
    torch.manual_seed(0)
    captioner = build_g2l(G2lOptions.model_validate(values | sizes | changes), SIZES, VOCABULARY)
    with torch.no_grad():
        for parameter in captioner.parameters():
            parameter.mul_(scale)
    return captioner.eval()


def _batch(videos: int = 4, captions: int = 2, rows: int = 8, seed: int = 0) -> Batch:
    """Videos of 1 to `rows` positions, with up to 3 regions at every third of them."""
    random = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, rows + 1, (videos, 1), generator=random)
    R = math.ceil(rows / 3)
    features = {name: torch.randn(videos, rows, SIZES[name], generator=random) for name in ("look", "motion")}
    features["things"] = torch.randn(videos, R, 3, SIZES["things"], generator=random)
    found = torch.randint(1, 4, (videos, R, 1), generator=random)
    features["things"][torch.arange(3) >= found] = 0.0
    mask = torch.arange(rows) < lengths
    masks = {"look": mask, "motion": mask.clone(), "things": torch.arange(R) < (lengths + 2) // 3}
    return replace(toy_batch(videos, captions, seed=seed), features=features, masks=masks)


def _fill(module: nn.Module, **values: list[Any]) -> None:
    with torch.no_grad():
        for name, value in values.items():
            module.get_parameter(name.replace("__", ".")).copy_(torch.tensor(value))


def test_equation_1_projects_frames_and_clips_and_equation_7_regions() -> None:
    encoder = G2lEncoder([("f", 1), ("v", 1), ("r", 1)], projection=2)
    _fill(encoder.project_frames, weight=[[2.0], [-1.0]], bias=[0.1, 0.2])
    _fill(encoder.project_clips, weight=[[1.0], [1.0]], bias=[-0.5, 0.5])
    assert encoder.project_regions is not None
    _fill(encoder.project_regions, weight=[[1.0], [3.0]], bias=[0.5, 0.0])
    memory = encoder(
        {"f": torch.tensor([[[1.0], [math.nan]]]), "v": torch.tensor([[[0.25], [9.0]]]), "r": torch.tensor([[[[2.0], [0.0]]]])},
        {"f": torch.tensor([[True, False]]), "v": torch.tensor([[True, False]]), "r": torch.tensor([[True]])},
    )
    assert memory.tokens[0].tolist() == pytest.approx(torch.tensor([[2.1, 0, 0, 0.75], [0, 0, 0, 0]]), abs=1e-6)
    assert memory.summary[0].tolist() == pytest.approx([2.1, 0, 0, 0.75], abs=1e-6)
    assert memory.extras["regions"][0, 0].tolist() == [[2.5, 6.0], [0, 0]]  # a region of zeros is no region
    assert memory.extras["region_mask"].tolist() == [[[True, False]]]


def _score(h: float, v: float, w: list[float], W_ha: list[float], W_va: list[float], b: list[float]) -> float:
    """Eq. 3 with a one-dimensional state and value."""
    return sum(w[a] * math.tanh(W_ha[a] * h * W_va[a] * v + b[a]) for a in range(len(w)))


def test_equations_2_to_4_by_hand() -> None:
    own = {"w": [1.0, -2.0], "W_ha": [0.5, 1.0], "W_va": [2.0, -1.0], "b": [0.1, -0.2]}

    def set_score(score: ProductScore, sign: float, copies: int = 1) -> None:
        _fill(score, key__weight=[[sign * x] * copies for x in own["W_va"]], query__weight=[[x] for x in own["W_ha"]])
        _fill(score, bias=own["b"], score__weight=[own["w"]])

    aligned = AlignedAttention(hidden=1, values=2, attention=2, size=1)
    reader = G2lAttention(1, 1, 2, aligned, None)
    set_score(reader.of_frames, 1.0)
    set_score(reader.of_clips, -1.0)
    set_score(aligned.score, 0.5, copies=2)
    _fill(aligned, compact__weight=[[1.5, -0.5]], bias=[0.05])
    f, v, h = [0.4, 1.0, 7.0], [0.9, 0.2, 7.0], 0.8
    real = torch.tensor([[True, True, False]])
    tokens = torch.tensor([[list(pair) for pair in zip(f, v, strict=True)]])
    memory = Memory(tokens, real, torch.zeros(1, 2), {"frame_mask": real, "clip_mask": real})
    context, weights = reader(torch.tensor([[h]]), reader.prepare(memory))

    def softmax(scores: list[float]) -> list[float]:
        return [math.exp(s) / sum(math.exp(x) for x in scores) for s in scores]

    a2d = softmax([_score(h, x, **own) for x in f[:2]])
    a3d = softmax([_score(h, -x, **own) for x in v[:2]])
    al = softmax([_score(h, 0.5 * (x + y), **own) for x, y in zip(f[:2], v[:2], strict=True)])
    phi = [max(0.0, a * (1.5 * x - 0.5 * y) + 0.05) for a, x, y in zip(al, f[:2], v[:2], strict=True)]
    expected = [a2d[0] * f[0] + a2d[1] * f[1], a3d[0] * v[0] + a3d[1] * v[1], sum(phi)]
    assert context[0].tolist() == pytest.approx(expected, abs=1e-6)
    assert weights[0].tolist() == pytest.approx([*al, 0.0], abs=1e-6)


def test_equation_8_averages_three_positions_for_each_frame_with_regions() -> None:
    attention = torch.tensor([[0.1, 0.2, 0.3, 0.05, 0.05, 0.1, 0.2]])
    assert grouped(attention, 3, 3)[0].tolist() == pytest.approx([0.2, 0.2 / 3, 0.2 / 3])
    assert grouped(attention, 3, 2)[0].tolist() == pytest.approx([0.2, 0.2 / 3])
    assert grouped(attention, 3, 4)[0].tolist() == pytest.approx([0.2, 0.2 / 3, 0.2 / 3, 0.0])


@pytest.mark.parametrize("training", [False, True])
def test_equation_9_sums_the_attended_regions_of_the_frames_chosen(training: bool) -> None:
    local = RegionAttention(TopKSampler(SamplerOptions(k=2)), hidden=1, values=1, attention=1, stride=1)
    _fill(local.score, key__weight=[[1.0]], query__weight=[[1.0]], bias=[0.0], score__weight=[[1.0]])
    regions = torch.tensor([[[[1.0], [2.0]], [[50.0], [60.0]], [[3.0], [0.0]]]])
    memory = Memory(
        torch.zeros(1, 3, 1),
        torch.ones(1, 3, dtype=torch.bool),
        torch.zeros(1, 1),
        {"regions": regions, "region_mask": torch.tensor([[[True, True], [True, True], [True, False]]])},
    )
    memory = replace(memory, extras={**memory.extras, **local.prepare(memory)})
    # Frame 1 has no attention at all, so training too takes frames 0 and 2, in either order.
    found = local.train(training)(torch.tensor([[0.5]]), torch.tensor([[0.6, 0.0, 0.4]]), memory)
    e1, e2 = math.exp(math.tanh(0.5)), math.exp(math.tanh(1.0))
    assert found.item() == pytest.approx((1 * e1 + 2 * e2) / (e1 + e2) + 3, abs=1e-5)


def test_two_layers_equal_torchs_gru() -> None:
    torch.manual_seed(0)
    decoder = GruDecoder(MeanContext(), VOCABULARY, (3, 3, 4, 5), layers=2, dropout=0)
    gru = nn.GRU(4 + 3, 5, num_layers=2, batch_first=True)
    below = decoder.gates_from_below[0]
    with torch.no_grad():
        gates = torch.cat([decoder.gates_from_word.weight, decoder.gates_from_context.weight], 1)
        gru.get_parameter("weight_ih_l0").copy_(gates)
        gru.get_parameter("bias_ih_l0").copy_(decoder.gates_from_word.bias)
        gru.get_parameter("weight_ih_l1").copy_(below.get_parameter("weight"))
        gru.get_parameter("bias_ih_l1").copy_(below.get_parameter("bias"))
        for layer, past in enumerate(decoder.gates_from_past):
            gru.get_parameter(f"weight_hh_l{layer}").copy_(past.get_parameter("weight"))
            gru.get_parameter(f"bias_hh_l{layer}").copy_(past.get_parameter("bias"))
    memory = Memory(torch.zeros(2, 1, 3), torch.ones(2, 1, dtype=torch.bool), torch.randn(2, 3))
    tokens = torch.tensor([[1, 4, 7, 2], [1, 5, 5, 2]])
    words = torch.cat([decoder.embed(tokens[:, :-1]), memory.summary.unsqueeze(1).expand(-1, 3, -1)], -1)
    hidden, _ = gru(words, torch.stack(decoder.start(memory)))
    assert torch.allclose(decoder.teacher_forced(tokens, memory), decoder.predict(hidden), atol=1e-6)


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
        assert weights is not None and torch.allclose(weights.sum(-1), torch.ones(len(weights)), atol=1e-5)
        assert not weights[~memory.mask].any()


@every_variant
def test_eight_videos_at_once_equal_eight_times_one_without_their_padding(variant: str) -> None:
    captioner, batch = _captioner(variant), _batch(videos=8, captions=1)
    assert batch.tokens is not None
    together = captioner(batch)
    for i in range(8):
        real = {name: int(mask[i].sum()) for name, mask in batch.masks.items()}
        length = int((batch.tokens[i] != PAD).sum())
        alone = Batch(
            (batch.video_ids[i],),
            {name: x[i : i + 1, : real[name]] for name, x in batch.features.items()},
            {name: x[i : i + 1, : real[name]] for name, x in batch.masks.items()},
            batch.tokens[i : i + 1, :length],
            torch.zeros(1, dtype=torch.int64),
        )
        assert torch.allclose(together[i, : length - 1], captioner(alone)[0], atol=1e-5)


def test_what_stands_in_padding_does_not_matter() -> None:
    captioner, batch = _captioner(), _batch()
    before = captioner(batch)
    for name, mask in batch.masks.items():
        batch.features[name][~mask] = math.nan
    assert torch.equal(captioner(batch), before)


@every_variant
@pytest.mark.parametrize("missing", [("look",), ("motion",), ("things",), ("look", "motion", "things")])
def test_a_missing_feature_gives_numbers_and_gradients(variant: str, missing: tuple[str, ...]) -> None:
    captioner, batch = _captioner(variant).train(), _batch()
    for name in missing:
        batch.masks[name][1] = False
    loss = CrossEntropy()(captioner, batch)
    loss.backward()
    assert torch.isfinite(loss)
    assert all(torch.isfinite(p.grad).all() for p in captioner.parameters() if p.grad is not None)


def test_regions_matter_only_where_the_sampler_looks() -> None:
    captioner, batch = _captioner("local 1", region_stride=8), _batch()
    before = captioner(batch)  # all positions belong to the first frame with regions
    batch.features["things"][:, 1:] += 1.0
    assert torch.equal(captioner(batch), before)
    batch.features["things"][:, 0] += 1.0
    assert not torch.allclose(captioner(batch), before)


def test_training_draws_frames_and_inference_does_not() -> None:
    captioner, batch = _captioner(), _batch()
    assert torch.equal(captioner(batch), captioner(batch))
    assert not torch.equal(captioner.train()(batch), captioner(batch))
    calm = _captioner("argmax")
    assert torch.allclose(calm.train()(batch), calm.eval()(batch), atol=1e-6)


def _only_through_choices(variant: str) -> Tensor | None:
    """The gradient of a loss on the local context alone, with respect to the aligned attention."""
    captioner, batch = _captioner(variant).train(), _batch()
    memory = captioner.encode(batch.features, batch.masks)
    decoder = captioner.decoder
    assert isinstance(decoder, GruDecoder) and isinstance(decoder.reader, G2lAttention) and decoder.reader.local is not None
    attention = torch.softmax(torch.randn(memory.mask.shape), -1).requires_grad_()
    decoder.reader.local(decoder.start(memory)[-1], attention, memory).sum().backward()
    return attention.grad


def test_the_local_branch_teaches_the_attention_with_gumbel_and_not_without() -> None:
    taught = _only_through_choices("local 2")
    assert taught is not None and taught.abs().sum() > 0 and torch.isfinite(taught).all()
    assert _only_through_choices("argmax") is None


def test_frames_and_clips_at_different_positions_are_refused() -> None:
    captioner, batch = _captioner(), _batch(rows=6)
    batch.features["motion"] = batch.features["motion"][:, ::2]
    batch.masks["motion"] = batch.masks["motion"][:, ::2]
    with pytest.raises(ValueError, match="'look' and 'motion' must be sampled at the same positions"):
        captioner(batch)


def test_regions_without_alignment_are_refused() -> None:
    with pytest.raises(ValidationError, match="chosen by the aligned attention"):
        G2lOptions(frames="look", clips="motion", regions="things", alignment=False)


def test_its_options_say_what_it_reads_and_a_feature_that_is_not_there_is_named() -> None:
    options = G2lOptions(frames="look", clips="motion", regions="things")
    assert options.features == ("look", "motion", "things")
    assert G2lOptions(frames="look", clips="look").features == ("look",)
    with pytest.raises(ValueError, match="things that are not there; there are look, motion"):
        build_g2l(options, {"look": 6, "motion": 4}, VOCABULARY)


GOLDEN: dict[str, list[float]] = {
    "base": [-2.22324, -3.14579, -3.13103, -2.16108, -2.03093],
    "aligned": [-2.82602, -2.1688, -3.03588, -2.33911, -4.1428],
    "local 1": [-3.07165, -2.63958, -3.00579, -2.56939, -3.21302],
    "local 2": [-3.03816, -2.55139, -2.9183, -2.57316, -3.34522],
    "local 3": [-3.0213, -2.63114, -2.99299, -2.60912, -3.22382],
    "argmax": [-3.03816, -2.55139, -2.9183, -2.57316, -3.34522],
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


@pytest.mark.parametrize("variant", ["base", "local 2", "argmax"])
def test_it_learns_eight_clips_by_heart(variant: str) -> None:
    batch = _batch(videos=8, captions=1)
    assert batch.tokens is not None
    sizes = {"projection": 24, "attention": 16, "aligned": 12, "embedding": 16, "hidden": 32}
    captioner = _captioner(variant, scale=1.0, **sizes)
    objective = Objective(xe=(1.0, CrossEntropy()))
    losses = [
        progress.losses["xe"] for progress in fit(captioner, objective, _Always(batch), FitOptions(epochs=8, learning_rate=2e-2))
    ]
    assert losses[-1] < 0.1 < losses[0]
    found = greedy(captioner.eval(), batch.features, batch.masks, max_length=5).tokens[:, 0]
    assert torch.equal(found, batch.tokens[:, 1:])
