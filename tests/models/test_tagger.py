"""The word tagger: it learns colour and motion from soft words, and a position's feature is its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from models.tagger import TagBatch, TaggerOptions, TagLoss, WordTagger
from models.training.loop import FitOptions, fit
from models.training.objective import Objective

SIZE, POSITIONS = 24, 4
WORDS = ("red", "blue", "left", "right")
OPTIONS = TaggerOptions(words=4, size=SIZE, channels=(8, 16, 16), feature_size=24, dropout=0.0, shift=2)


def toy_clip(colour: str, direction: str, random: torch.Generator) -> Tensor:
    """A square that moves; grey noise fills half of the positions: (P, 3, S, S, 3) uint8."""
    clip = torch.randint(90, 130, (POSITIONS, 3, SIZE, SIZE, 1), generator=random).expand(-1, -1, -1, -1, 3).clone()
    first = int(torch.randint(0, POSITIONS - 1, (), generator=random))
    top = int(torch.randint(3, SIZE - 10, (), generator=random))
    for position in (first, first + 1):
        start = int(torch.randint(5, SIZE - 12, (), generator=random))
        for frame in range(3):
            x = start + (frame - 1) * (3 if direction == "right" else -3)
            clip[position, frame] = 20
            clip[position, frame, top : top + 6, x : x + 6, 0 if colour == "red" else 2] = 230
    return clip.to(torch.uint8)


def toy_clips(count: int, seed: int) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    kinds = [(("red", "blue")[i % 2], ("left", "right")[i // 2 % 2]) for i in range(count)]
    clips = torch.stack([toy_clip(colour, direction, random) for colour, direction in kinds])
    # Four of five captions name it.
    return clips, torch.tensor([[0.8 * (word in kind) for word in WORDS] for kind in kinds])


class ToyBatches:
    steps_per_epoch = 6

    def __init__(self, clips: Tensor, targets: Tensor):
        self.clips, self.targets = clips, targets

    def __call__(self, epoch: int, skip: int) -> Iterator[TagBatch]:
        order = torch.randperm(len(self.clips), generator=torch.Generator().manual_seed(epoch)).chunk(6)
        for rows in order[skip:]:
            yield TagBatch(tuple(f"v{i}" for i in rows.tolist()), self.clips[rows], self.targets[rows])


@pytest.fixture(scope="module")
def trained() -> WordTagger:
    torch.manual_seed(0)
    tagger = WordTagger(OPTIONS)
    batches = ToyBatches(*toy_clips(48, seed=1))
    options = FitOptions(epochs=25, learning_rate=5e-3, schedule="cosine")
    losses = [p.losses["words"] for p in fit(tagger, Objective(words=(1.0, TagLoss())), batches, options)]
    assert losses[-1] < 0.6 * losses[0]
    return tagger.eval()


def test_new_clips_get_their_words(trained: WordTagger) -> None:
    clips, targets = toy_clips(32, seed=2)
    found = torch.sigmoid(trained(clips))
    assert found.shape == (32, 4) and (found >= 0).all() and (found <= 1).all()
    right = (found > 0.4) == (targets > 0)
    assert right[:, :2].float().mean() > 0.95, "colour"
    assert right[:, 2:].float().mean() > 0.9, "direction"


def test_position_features_carry_the_direction(trained: WordTagger) -> None:
    """A linear probe on features of single positions tells left from right."""

    def positions(seed: int) -> tuple[Tensor, Tensor]:
        clips, targets = toy_clips(40, seed)
        moving = clips.float().flatten(2).amax(2) > 200  # where the square is
        rows = torch.stack([trained.features(clip) for clip in clips])
        labels = (targets[:, 3:] > 0).expand(-1, POSITIONS)
        return rows[moving], labels[moving].float() * 2 - 1

    rows, labels = positions(3)
    probe = torch.linalg.lstsq(torch.cat([rows, torch.ones(len(rows), 1)], 1), labels.unsqueeze(1)).solution
    rows, labels = positions(4)
    found = (torch.cat([rows, torch.ones(len(rows), 1)], 1) @ probe).squeeze(1)
    assert (found.sign() == labels).float().mean() > 0.9


def test_a_positions_feature_depends_on_its_own_frames_alone(trained: WordTagger) -> None:
    clip = toy_clips(1, seed=5)[0][0]
    changed = clip.clone()
    changed[0] = 255 - changed[0]
    before, after = trained.features(clip), trained.features(changed)
    assert before.shape == (POSITIONS, OPTIONS.feature_size)
    assert torch.allclose(before[1:], after[1:], atol=1e-6) and not torch.allclose(before[0], after[0], atol=1e-3)
    assert torch.allclose(trained.features(clip[2:3]), before[2:3], atol=1e-5)


def test_clips_are_moved_in_training_only_and_all_frames_alike() -> None:
    torch.manual_seed(0)
    tagger = WordTagger(OPTIONS)
    clips, _ = toy_clips(4, seed=6)
    still = torch.zeros_like(clips) + clips[:, :1, :1]  # nothing moves, so no difference may appear
    seen: list[Tensor] = []
    tagger.convolutions.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    tagger(still)
    tagger(still)
    assert seen[0].shape[0] == 4 * POSITIONS // OPTIONS.thin
    assert not torch.equal(seen[0][:, :3], seen[1][:, :3])
    assert all((maps[:, 3:] == 0).all() for maps in seen)
    tagger.eval()
    assert torch.equal(tagger(still), tagger(still))


def test_the_loss_is_the_cross_entropy_of_soft_targets() -> None:
    tagger = WordTagger(OPTIONS).eval()
    clips, targets = toy_clips(3, seed=7)
    p = torch.sigmoid(tagger(clips))
    expected = -(targets * p.log() + (1 - targets) * (1 - p).log()).mean()
    assert TagLoss()(tagger, TagBatch(("a", "b", "c"), clips, targets)).item() == pytest.approx(expected.item(), rel=1e-5)


def test_a_batch_of_one_position_can_be_trained_on() -> None:
    tagger = WordTagger(OPTIONS)
    assert torch.isfinite(tagger(toy_clips(1, seed=8)[0][:, :1])).all()
    assert all(module.training for module in tagger.modules())


def test_frames_of_another_size_are_refused() -> None:
    with pytest.raises(ValueError, match="3 frames of 24 x 24 RGB pixels, here the shape is \\(3, 16, 16, 3\\)"):
        WordTagger(OPTIONS).features(torch.zeros(2, 3, 16, 16, 3, dtype=torch.uint8))
