"""Small captioners on random features: what the self-test trains and compares."""

from collections.abc import Iterator
from typing import Any

import torch
from pydantic import TypeAdapter

from models.captioner import Captioner
from models.losses.cross_entropy import CrossEntropy
from models.losses.policy_gradient import PolicyGradient
from models.metrics.ngrams import NgramIndex
from models.metrics.sentences import VideoCaptions
from models.rewards.consensus import Consensus
from models.training.objective import Objective
from models.training.parallel import Ranks
from models.types import BOS, EOS, PAD, Batch
from models.zoo import CaptionerOptions, build_captioner

FEATURES = {"frames": 24, "clips": 16}
WORDS, LONGEST = 40, 8
_BOTH = ["frames", "clips"]
CAPTIONERS: dict[str, dict[str, Any]] = {
    "sa_lstm": {"features": _BOTH, "embedding": 16, "hidden": 24, "attention": 16},
    "mp_lstm": {"features": _BOTH, "embedding": 16, "hidden": 24},
    "s2vt": {"features": _BOTH, "embedding": 16, "hidden": 24},
    "recnet": {"base": {"kind": "sa_lstm", "features": ["frames"], "embedding": 16, "hidden": 24, "attention": 16}},
    "glrg": {"features": _BOTH, "projection": 16, "embedding": 16, "hidden": 24},
    "g2l": {
        "frames": "frames",
        "clips": "clips",
        "projection": 16,
        "attention": 16,
        "aligned": 16,
        "embedding": 16,
        "hidden": 24,
    },
    "vre": {"temporal": "frames", "spatial": "clips", "hidden": 24},
    "show_tell": {"features": _BOTH, "embedding": 24, "hidden": 24},
    "top_down": {"features": _BOTH, "embedding": 16, "hidden": 24, "attention": 16},
}


def captioner_of(kind: str, **changes: Any) -> Captioner:
    """Fresh weights of seed 0; by default without dropout, whose random numbers differ between devices."""
    torch.manual_seed(0)
    values = {"kind": kind, **CAPTIONERS[kind], **changes}
    (values["base"] if kind == "recnet" else values).setdefault("dropout", 0.0)
    return build_captioner(TypeAdapter(CaptionerOptions).validate_python(values), FEATURES, WORDS)


def batch_of(seed: int, videos: int = 6, captions: int = 2, rows: int = 5) -> Batch:
    """Videos of random features, with captions of 1 to LONGEST random words each."""
    random = torch.Generator().manual_seed(seed)
    features = {name: torch.randn(videos, rows, size, generator=random) for name, size in FEATURES.items()}
    mask = torch.arange(rows) < torch.randint(1, rows + 1, (videos, 1), generator=random)
    lengths = torch.randint(1, LONGEST + 1, (videos * captions, 1), generator=random)
    words, position = torch.randint(4, WORDS, (videos * captions, LONGEST + 2), generator=random), torch.arange(LONGEST + 2)
    tokens = (
        words.masked_fill(position == 0, BOS).masked_fill(position == lengths + 1, EOS).masked_fill(position > lengths + 1, PAD)
    )
    ids = tuple(f"v{n}" for n in range(videos))
    return Batch(ids, features, dict.fromkeys(FEATURES, mask), tokens, torch.arange(videos).repeat_interleave(captions), ids)


class RandomBatches:
    """Epochs of some random batches; of several processes, each gets its shard of the videos."""

    def __init__(self, steps: int, videos: int = 6, captions: int = 2, rows: int = 5):
        self.steps_per_epoch, self.sizes, self.ranks = steps, (videos, captions, rows), Ranks()

    def __call__(self, epoch: int, skip: int) -> Iterator[Batch]:
        return (self._shard(batch_of(1000 * epoch + step, *self.sizes)) for step in range(skip, self.steps_per_epoch))

    def _shard(self, batch: Batch) -> Batch:
        videos = self.ranks.shard(list(range(len(batch.video_ids))))
        assert batch.tokens is not None and batch.video_index is not None
        own = torch.isin(batch.video_index, torch.tensor(videos))
        features, masks = ({name: x[videos] for name, x in part.items()} for part in (batch.features, batch.masks))
        index = torch.searchsorted(torch.tensor(videos), batch.video_index[own])
        ids = tuple(batch.video_ids[n] for n in videos)
        return Batch(ids, features, masks, batch.tokens[own], index, ids)


def seeding() -> Objective:
    return Objective(xe=(1.0, CrossEntropy()))


def boosting(videos: int = 6, samples: int = 5) -> Objective:
    """Policy gradient on CIDEr-D with baseline b2."""
    references = [[[4 + (v + w + c) % (WORDS - 4) for w in range(6)] for c in range(5)] for v in range(videos)]
    reward = Consensus(NgramIndex.build(VideoCaptions.from_lists(references)))
    return Objective(policy=(1.0, PolicyGradient(reward, {f"v{n}": n for n in range(videos)}, samples, LONGEST)))
