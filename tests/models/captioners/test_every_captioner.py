"""What no captioner may do: say something else because of its neighbours in a batch, their lengths or what they lack."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter

from models.captioner import Captioner
from models.decoding.beam_search import beam
from models.decoding.greedy_and_sampling import greedy, sample
from models.types import BOS, EOS, Batch
from models.zoo import CAPTIONERS, CaptionerOptions, build_captioner
from tests.models.caption_likelihood import caption_log_probs
from tests.models.captioners.captioner_checks import opinionated

VIDEOS, WORDS = 20, 13
SIZES = {"frames": 6, "clips": 5, "cells": 4, "sound": 3}
SMALL: dict[str, dict[str, Any]] = {
    "sa_lstm": {"features": ["frames", "clips"], "embedding": 5, "hidden": 8, "attention": 7},
    "mp_lstm": {"features": ["frames", "clips"], "embedding": 5, "hidden": 8},
    "s2vt": {"features": ["frames", "clips"], "embedding": 5, "hidden": 8},
    "recnet": {"base": {"kind": "sa_lstm", "features": ["frames"], "embedding": 5, "hidden": 8, "attention": 7}},
    "glrg": {"features": ["frames", "sound"], "projection": 6, "embedding": 5, "hidden": 8},
    "g2l": {"frames": "frames", "clips": "clips", "regions": "cells", "region_stride": 2, "projection": 6, "attention": 5}
    | {"aligned": 4, "embedding": 5, "hidden": 8},
    "vre": {"temporal": "frames", "spatial": "clips", "audio": "sound", "hidden": 8},
    "show_tell": {"features": ["frames", "cells"], "embedding": 8, "hidden": 8},
    "top_down": {"features": ["frames", "cells"], "embedding": 5, "hidden": 8, "attention": 7},
}
Features = tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]


def small(kind: str) -> Captioner:
    torch.manual_seed(1)
    options = TypeAdapter(CaptionerOptions).validate_python({"kind": kind, **SMALL[kind]})
    captioner = opinionated(build_captioner(options, SIZES, WORDS))
    with torch.no_grad():
        captioner.decoder.predict.bias[EOS] -= 2.0  # type: ignore[attr-defined]  # some would say nothing else
    return captioner


def videos() -> Features:
    """20 videos of 1 to 6 frames and as many clips, cells of every second; every fifth lacks clips, every fourth sound, one
    has nothing at all. What is not real is not a number."""
    random = torch.Generator().manual_seed(2)
    lengths = torch.randint(1, 7, (VIDEOS,), generator=random)
    there = {"frames": lengths, "clips": lengths.clone(), "cells": (lengths + 1) // 2, "sound": torch.full((VIDEOS,), 2)}
    there["clips"][::5] = 0
    there["sound"][::4] = 0
    for rows in there.values():
        rows[7] = 0
    masks = {name: torch.arange({"cells": 3, "sound": 2}.get(name, 6)) < rows.unsqueeze(1) for name, rows in there.items()}
    features = {}
    for name, mask in masks.items():
        shape = (*mask.shape, 4, SIZES[name]) if name == "cells" else (*mask.shape, SIZES[name])
        features[name] = torch.randn(shape, generator=random)
        features[name][~mask] = torch.nan
    return features, masks


def alone(features: Features, i: int) -> Features:
    """Video i without padding; a feature that it lacks comes as one row that is not real."""
    rows = {name: max(1, int(mask[i].sum())) for name, mask in features[1].items()}
    cut = [{name: x[i : i + 1, : rows[name]] for name, x in part.items()} for part in features]
    return cut[0], cut[1]


def test_every_captioner_of_the_zoo_is_here() -> None:
    assert list(SMALL) == list(CAPTIONERS)


@pytest.mark.parametrize("kind", SMALL)
@torch.no_grad()
def test_a_step_gives_the_logits_of_the_wanted_rows_alone(kind: str) -> None:
    captioner, wanted = small(kind).train(), torch.tensor([1, 5, 6])
    memory = captioner.encode(*videos())
    token, state = torch.full((VIDEOS,), BOS), captioner.decoder.start(memory)
    results = []
    for rows in (None, wanted):
        torch.manual_seed(3)  # dropout is drawn for all rows either way
        results.append(captioner.decoder.step(token, state, memory, rows))
    (every, after, _), (some, after_too, _) = results
    assert every.shape == (VIDEOS, WORDS) and torch.allclose(some, every[wanted], atol=1e-6)
    assert all(torch.equal(a, b) for a, b in zip(after, after_too, strict=True))


@pytest.mark.parametrize("kind", SMALL)
def test_a_caption_is_the_same_alone_and_in_a_batch(kind: str) -> None:
    captioner, (features, masks) = small(kind), videos()
    together = beam(captioner, features, masks, 6, width=3, n_best=2, attention=True)
    torch.manual_seed(5)
    drawn = sample(captioner, features, masks, 6, n=2)
    assert len({tuple(row) for row in together.tokens[:, 0].tolist()}) > 3, "they all say the same: the test sees nothing"
    torch.manual_seed(5)
    for i in range(VIDEOS):
        one = alone((features, masks), i)
        found = beam(captioner, *one, 6, width=3, n_best=2, attention=True)
        assert torch.equal(found.tokens[0], together.tokens[i])
        assert torch.allclose(found.log_probs[0], together.log_probs[i], atol=1e-4)
        assert torch.equal(sample(captioner, *one, 6, n=2).tokens[0], drawn.tokens[i])
        if found.attention is not None and together.attention is not None:
            seen = found.attention[0].sum(-1)
            assert torch.allclose(seen, together.attention[i].sum(-1), atol=1e-5)


@pytest.mark.parametrize("kind", SMALL)
def test_a_beam_of_one_is_greedy_and_scores_are_those_of_the_caption(kind: str) -> None:
    captioner, (features, masks) = small(kind), videos()
    one, best = greedy(captioner, features, masks, 6), beam(captioner, features, masks, 6, width=1)
    assert torch.equal(one.tokens, best.tokens)
    tokens = torch.cat([torch.full((VIDEOS, 1), BOS), one.tokens[:, 0]], 1)
    own = caption_log_probs(captioner, features, masks, tokens, torch.arange(VIDEOS))
    assert torch.allclose(own, one.log_probs[:, 0], atol=1e-4)


@pytest.mark.parametrize("kind", SMALL)
def test_it_can_be_trained_on_videos_that_lack_features(kind: str) -> None:
    captioner, (features, masks) = small(kind).train(), videos()
    memory = captioner.encode(features, masks)
    tokens = torch.tensor([[BOS, 4, 5, 6, 2]]).expand(VIDEOS, -1)
    torch.log_softmax(captioner.decoder.teacher_forced(tokens, memory), -1)[:, :, 5].sum().backward()
    grads = [p.grad for p in captioner.parameters() if p.grad is not None]
    assert grads and all(torch.isfinite(grad).all() for grad in grads)


@pytest.mark.parametrize("kind", SMALL)
def test_nothing_of_a_training_step_stays_in_memory(kind: str) -> None:
    captioner, ids = small(kind).train(), tuple(map(str, range(VIDEOS)))
    tokens = torch.randint(EOS + 1, WORDS, (VIDEOS, 6), generator=torch.Generator().manual_seed(3))

    def alive_after_a_step() -> int:
        captioner(Batch(ids, *videos(), tokens, torch.arange(VIDEOS), ids)).sum().backward()
        gc.collect()
        return sum(1 for x in gc.get_objects() if issubclass(type(x), torch.Tensor))

    alive_after_a_step()  # gradients of the weights stay
    assert alive_after_a_step() == alive_after_a_step()
