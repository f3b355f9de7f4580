"""A training run: its curve can be watched, a bad batch is kept, its checkpoints are few and know what they belong to."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from models.losses.cross_entropy import CrossEntropy
from models.training.loop import FitOptions
from models.training.objective import Objective
from models.types import Batch
from storage.checkpoints import Checkpoint, LastCheckpoints
from storage.errors import LongtakeError, Mismatch
from storage.records import ArtifactRef
from storage.results import read_jsonl
from storage.workspace import Workspace
from tasks.framework.runtime import Runtime
from tasks.framework.stage import StageContext
from tasks.training.trainer import LAST, Training, run_training
from tests.models.toy_captions import toy_batch, toy_captioner
from tests.tasks.training.interruption import interrupted_at

EPOCHS, STEPS = 4, 3


class ToyBatches:
    """Three batches per epoch; one of them may be spoilt."""

    steps_per_epoch = STEPS

    def __init__(self, spoilt: tuple[int, int] | None = None):
        self.spoilt = spoilt

    def __call__(self, epoch: int, skip: int) -> Iterator[Batch]:
        for step in range(skip, STEPS):
            batch = toy_batch(videos=3, seed=100 * epoch + step)
            if (epoch, step) == self.spoilt:
                batch.features["rgb"][0, 0] = torch.nan
            yield batch


def training(scores: list[float] | None = None, **changes: Any) -> Training:
    coming = iter(scores or [])
    torch.manual_seed(3)
    toy = Training(
        label="learning toys",
        model=toy_captioner(dropout=0.3),
        objective=Objective(xe=(1.0, CrossEntropy())),
        batches=ToyBatches(),
        options=FitOptions(epochs=EPOCHS, learning_rate=0.01),
        result="captioner.safetensors",
        metadata={"vocabulary": "the words", "extractors": {"rgb": "the features"}},
        validate=(lambda: (score := next(coming), {"val_cider": score})) if scores else None,
        score_name="CIDEr",
        patience=2,
    )
    return replace(toy, **changes)


@pytest.fixture
def context(tmp_path: Path) -> StageContext:
    folder = tmp_path / "stage"
    folder.mkdir()
    runtime = Runtime(device="cpu")
    return StageContext(Workspace.open(tmp_path / "w"), tmp_path, runtime, folder, ArtifactRef("seed", "artifacts/seed/a", "a"))


def test_the_best_epoch_is_kept_and_patience_ends_it(context: StageContext) -> None:
    trained = run_training(context, training([0.1, 0.5, 0.4, 0.3]))
    assert (trained.best.epoch, trained.best.score) == (1, 0.5)
    assert [point["val_cider"] for point in trained.history] == [0.1, 0.5, 0.4, 0.3]
    kept = Checkpoint.load(context.folder / "captioner.safetensors")
    assert kept.values == {"vocabulary": "the words", "extractors": {"rgb": "the features"}, "epoch": 1}
    again = run_training(context, training([0.5, 0.1, 0.1, 0.1]))
    assert len(again.history) == 3 and again.best.epoch == 0, "two epochs were no better"
    assert sorted(path.name for path in context.folder.iterdir()) == ["captioner.safetensors", "curves.jsonl"]


def test_where_every_epoch_scores_0_the_last_one_is_kept(context: StageContext) -> None:
    trained = run_training(context, training([0.0] * EPOCHS))
    assert trained.best.epoch == EPOCHS - 1 and len(trained.history) == EPOCHS, "the CIDEr of one video says nothing"
    assert Checkpoint.load(context.folder / "captioner.safetensors").values["epoch"] == EPOCHS - 1


def test_the_last_epoch_is_kept_on_request_whatever_validation_finds(context: StageContext) -> None:
    options = FitOptions(epochs=EPOCHS, learning_rate=0.01, keep="last")
    trained = run_training(context, training([0.9, 0.1, 0.1, 0.2], options=options, patience=1))
    assert (trained.best.epoch, trained.best.score) == (EPOCHS - 1, 0.2)
    assert [point["val_cider"] for point in trained.history] == [0.9, 0.1, 0.1, 0.2], "validated all the same"
    assert Checkpoint.load(context.folder / "captioner.safetensors").values["epoch"] == EPOCHS - 1


def test_without_validation_the_last_epoch_is_the_best(context: StageContext) -> None:
    trained = run_training(context, training())
    assert trained.best.epoch == EPOCHS - 1 and len(trained.history) == EPOCHS


def test_mean_weights_are_validated_and_kept_and_survive_a_kill(context: StageContext) -> None:
    options = FitOptions(epochs=EPOCHS, learning_rate=0.01, ema_decay=0.7)
    validated: list[torch.Tensor] = []

    def averaged() -> Training:
        what = training(options=options)

        def validate() -> tuple[float, dict[str, Any]]:
            validated.append(dict(what.model.named_parameters())["decoder.predict.weight"].detach().clone())
            return float(len(validated)), {}

        return replace(what, validate=validate)

    run_training(context, averaged())
    result = context.folder / "captioner.safetensors"
    kept, whole = Checkpoint.load(result), result.read_bytes()
    assert torch.equal(torch.from_numpy(kept.tensors["model.decoder.predict.weight"]), validated[-1])
    assert all(name.startswith("model.") for name in kept.tensors)
    plain = training()
    run_training(context, plain)
    assert not torch.equal(dict(plain.model.named_parameters())["decoder.predict.weight"], validated[-1])
    with interrupted_at(2 * STEPS + 2):
        run_training(context, averaged())
    run_training(context, averaged())
    assert result.read_bytes() == whole


def test_an_epoch_before_the_first_that_counts_is_never_the_best(context: StageContext) -> None:
    trained = run_training(context, training([0.9, 0.8, 0.2, 0.3], first_epoch=2))
    assert (trained.best.epoch, trained.best.score) == (3, 0.3)


def test_the_curve_can_be_watched_while_it_grows(context: StageContext) -> None:
    with interrupted_at(2 * STEPS + 1):
        run_training(context, training())
    curve = read_jsonl(context.folder / "curves.jsonl")
    assert [point["epoch"] for point in curve] == [1, 2]
    assert all({"xe", "total", "learning_rate", "step"} <= point.keys() for point in curve)


def test_a_loss_that_is_not_finite_leaves_the_videos_and_the_last_good_checkpoint(context: StageContext) -> None:
    with pytest.raises(LongtakeError, match=r"step 5 .* on videos v0, v1, v2; .*not-finite\.json"):
        run_training(context, training(batches=ToyBatches(spoilt=(1, 1))))
    batch = json.loads((context.folder / "not-finite.json").read_text())
    assert batch["videos"] == ["v0", "v1", "v2"] and batch["step"] == 5 and batch["what"] == "loss"
    assert batch["losses"] == {"xe": "nan", "total": "nan"}
    assert Checkpoint.load(context.folder / LAST).values["training"]["step"] == STEPS
    trained = run_training(context, training())  # the features were repaired
    assert len(trained.history) == EPOCHS and not (context.folder / "not-finite.json").exists()


@pytest.mark.parametrize("at", [1, 3, 5, 7])
def test_a_resume_from_the_checkpoint_before_the_last_ends_in_the_same_bits(context: StageContext, at: int) -> None:
    files = ("captioner.safetensors", "curves.jsonl")
    run_training(context, training())
    whole = [(context.folder / name).read_bytes() for name in files]
    with interrupted_at(at):
        run_training(context, training())
    kept = LastCheckpoints(context.folder / LAST).paths()
    assert [path.name for path in kept] == [LAST, "last-2.safetensors"][: min(at, 2)]
    assert [Checkpoint.load(path).values["training"]["step"] for path in kept] == [at, at - 1][: len(kept)]
    if len(kept) > 1:
        (context.folder / LAST).write_bytes((context.folder / LAST).read_bytes()[:1000])  # a disk lost half of it
    assert run_training(context, training()).best.epoch == EPOCHS - 1
    assert [(context.folder / name).read_bytes() for name in files] == whole


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"vocabulary": "other words"}, "trained with vocabulary the words, not other words"),
        ({"extractors": {"rgb": "others"}}, "trained with extractors .*the features.*, not .*others"),
        ({"seeding": {"epochs": 9}}, "trained with seeding None, not"),
    ],
)
def test_a_checkpoint_of_another_training_is_not_gone_on_with(
    context: StageContext, metadata: dict[str, Any], message: str
) -> None:
    with interrupted_at(2):
        run_training(context, training())
    other = training()
    with pytest.raises(Mismatch, match=message):
        run_training(context, replace(other, metadata=other.metadata | metadata))
