"""Training batches and the features in them: an order of seed and epoch alone, every video once, captions without repeats."""

from __future__ import annotations

import threading
from collections import Counter
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from models.training.parallel import Ranks
from models.types import PAD, Batch
from storage.errors import MissingFeatures, StorageError
from storage.features.store import FeatureStore
from storage.files.atomic import write_json, write_parquet
from storage.workspace import Workspace
from tasks.framework.feature_access import FeatureAccess
from tasks.training.batches import CaptionBatches, drop_rows, pad

IDS = [f"v{n}" for n in range(11)]
LENGTHS = {id: 1 + n % 4 for n, id in enumerate(IDS)}
CAPTIONS = {id: [[1, 4 + 10 * n + k, *[7] * k, 2] for k in range(1 + n % 5)] for n, id in enumerate(IDS)}
INDICES = {id: [2 * n + 1 for n in range(len(rows))] for id, rows in CAPTIONS.items()}  # some captions had no words


def rows_of(id: str, size: int) -> np.ndarray:
    """Rows that tell which video they belong to."""
    return np.full((LENGTHS[id], size), IDS.index(id), np.float16)


@pytest.fixture(scope="module")
def extraction(tmp_path_factory: pytest.TempPathFactory) -> tuple[Workspace, Path]:
    """Two features as extraction leaves them; 'sound' has no row of v0, and an outdated one of v1."""
    workspace = Workspace.open(tmp_path_factory.mktemp("batches") / "workspace")
    folder, about = workspace.folder("extract_features", "k"), {}
    table: dict[str, list[str]] = {"feature": [], "id": [], "key": []}
    for name, size in (("scene", 3), ("sound", 2)):
        store = FeatureStore.create(workspace.feature_store("demo", name), provenance={"extractor_key": name})
        with store.writer() as writer:
            for id in IDS[name == "sound" :]:
                writer.add(id, "old", np.full((2, size), 99, np.float16))
                writer.add(id, "key", rows_of(id, size))
                for column, value in zip(table.values(), (name, id, "key"), strict=True):
                    column.append(value)
        about[name] = {"store": f"demo/{name}", "size": size, "key": name}
    write_parquet(folder / "rows.parquet", pa.table(table))
    write_json(folder / "features.json", about)
    return workspace, folder


@pytest.fixture
def batches(extraction: tuple[Workspace, Path]) -> CaptionBatches:
    access = FeatureAccess.open(*extraction, ("scene",))
    return CaptionBatches(access, CAPTIONS, INDICES, IDS, videos_per_batch=4, captions_per_video=2, seed=3)


@pytest.fixture
def over_videos(batches: CaptionBatches) -> CaptionBatches:
    """The same, but an epoch is a pass over the videos."""
    return CaptionBatches(batches.access, CAPTIONS, INDICES, IDS, 4, 2, seed=3, epoch_over="videos")


def shown(batch: Batch) -> tuple:
    """All of a batch that can be compared."""
    assert batch.tokens is not None
    features = {name: tensor.tolist() for name, tensor in batch.features.items()}
    return batch.video_ids, batch.caption_ids, batch.tokens.tolist(), features


def test_the_same_seed_and_epoch_give_the_same_batches(batches: CaptionBatches, extraction: tuple[Workspace, Path]) -> None:
    first = [shown(batch) for batch in batches(2, 0)]
    again = CaptionBatches(FeatureAccess.open(*extraction, ("scene",)), CAPTIONS, INDICES, IDS, 4, 2, seed=3)
    assert [shown(batch) for batch in again(2, 0)] == first
    assert [shown(batch) for batch in batches(2, 0)] == first
    visits = [1, 1, 2, 2, 3, 1, 1, 2, 2, 3, 1]  # 1 to 5 captions, two at a time
    assert len(first) == batches.steps_per_epoch == -(-sum(visits) // 4) == 5


def test_another_epoch_or_seed_gives_other_batches(batches: CaptionBatches) -> None:
    other = CaptionBatches(batches.access, CAPTIONS, INDICES, IDS, 4, 2, seed=4)
    orders = {tuple(id for batch in found for id in batch.video_ids) for found in (batches(0, 0), batches(1, 0), other(0, 0))}
    assert len(orders) == 3


@pytest.mark.parametrize("skip", [0, 1, 2, 5])
def test_skipping_gives_what_is_left_of_the_epoch(batches: CaptionBatches, skip: int) -> None:
    whole = [shown(batch) for batch in batches(5, 0)]
    assert [shown(batch) for batch in batches(5, skip)] == whole[skip:]


def test_every_caption_is_shown_once_an_epoch_and_belongs_to_its_video(batches: CaptionBatches) -> None:
    every = Counter(f"{id}#{n}" for id in IDS for n in INDICES[id])
    for epoch in range(6):
        assert Counter(name for batch in batches(epoch, 0) for name in batch.caption_ids) == every
        for batch in batches(epoch, 0):
            assert batch.tokens is not None and batch.video_index is not None
            assert len(set(batch.video_ids)) == len(batch.video_ids) <= 4, "a video is one row of its batch"
            for name, owner, tokens in zip(batch.caption_ids, batch.video_index.tolist(), batch.tokens.tolist(), strict=True):
                id, _, n = name.partition("#")
                assert id == batch.video_ids[owner]
                assert [token for token in tokens if token != PAD] == CAPTIONS[id][INDICES[id].index(int(n))]


def test_a_video_shows_other_captions_together_in_another_epoch(batches: CaptionBatches) -> None:
    def together(epoch: int) -> set[frozenset[str]]:
        """The captions of v4, which has five, as its batches have them."""
        shown = ([name for name in batch.caption_ids if name.startswith("v4#")] for batch in batches(epoch, 0))
        return {frozenset(names) for names in shown if names}

    assert len({frozenset(together(epoch)) for epoch in range(4)}) > 1


def test_the_visits_of_a_video_are_spread_over_the_epoch() -> None:
    ids = [f"v{n:02}" for n in range(40)]
    captions = {id: [[1, 5, 2]] * 10 for id in ids}
    batches = CaptionBatches(None, captions, {}, ids, 8, 2, seed=0)  # type: ignore[arg-type]
    order = batches._order(np.random.default_rng(0))
    assert batches.steps_per_epoch == 25 and len(order) == 200
    for video in range(40):
        gaps = np.diff(np.flatnonzero(order[:, 0] == video))
        assert order[order[:, 0] == video, 1].tolist() == [0, 1, 2, 3, 4] and gaps.min() >= 20, "a fifth of the epoch apart"


def test_an_epoch_over_videos_has_every_video_once_with_captions_drawn_anew(over_videos: CaptionBatches) -> None:
    drawn: Counter[str] = Counter()
    for epoch in range(20):
        assert [len(batch.video_ids) for batch in over_videos(epoch, 0)] == [4, 4, 3]
        assert Counter(id for batch in over_videos(epoch, 0) for id in batch.video_ids) == Counter(IDS)
        for batch in over_videos(epoch, 0):
            assert batch.video_index is not None and len(set(batch.caption_ids)) == len(batch.caption_ids)
            per_video = Counter(batch.video_index.tolist())
            assert per_video == {row: min(2, len(CAPTIONS[id])) for row, id in enumerate(batch.video_ids)}
            drawn.update(batch.caption_ids)
    assert set(drawn) == {f"{id}#{n}" for id in IDS for n in INDICES[id]}, "every caption has its turn"


def test_features_are_those_of_their_videos_padded_and_masked(batches: CaptionBatches) -> None:
    for batch in batches(0, 0):
        features, mask = batch.features["scene"], batch.masks["scene"]
        assert features.dtype == torch.float32 and mask.dtype == torch.bool
        assert features.shape == (len(batch.video_ids), max(LENGTHS[id] for id in batch.video_ids), 3)
        for row, id in enumerate(batch.video_ids):
            assert mask[row].tolist() == [place < LENGTHS[id] for place in range(mask.shape[1])]
            assert features[row][mask[row]].unique().tolist() == [float(IDS.index(id))]


def test_leaving_an_epoch_early_leaves_no_reading_thread_behind(batches: CaptionBatches) -> None:
    before = threading.active_count()
    started = batches(0, 0)
    assert len(list(islice(started, 1))) == 1
    started.close()  # type: ignore[attr-defined]
    assert threading.active_count() == before


def test_a_row_that_cannot_be_read_ends_the_epoch_with_its_reason(extraction: tuple[Workspace, Path]) -> None:
    access = FeatureAccess.open(*extraction, ("scene", "sound"))
    with pytest.raises(MissingFeatures, match="v0"):
        list(CaptionBatches(access, CAPTIONS, INDICES, IDS, 4, 2, 0)(0, 0))


def test_padding_fills_up_to_the_longest() -> None:
    assert pad([[1, 2], [1, 5, 6, 2], [3]]).tolist() == [[1, 2, PAD, PAD], [1, 5, 6, 2], [3, PAD, PAD, PAD]]


def test_usable_videos_have_a_row_in_every_feature(extraction: tuple[Workspace, Path]) -> None:
    both = FeatureAccess.open(*extraction, ("scene", "sound"))
    assert both.usable([*IDS, "never"]) == IDS[1:]
    assert both.sizes == {"scene": 3, "sound": 2}
    features, masks = both.read(["v3", "v1"])
    assert {name: tensor.shape for name, tensor in features.items()} == {"scene": (2, 4, 3), "sound": (2, 4, 2)}
    assert masks["sound"].tolist() == [[True] * 4, [True, True, False, False]]
    assert features["sound"][1, :2].unique().tolist() == [1.0], "the row of this extraction, not an older one"


def test_opening_pins_a_view_that_later_rows_do_not_disturb(extraction: tuple[Workspace, Path]) -> None:
    workspace, folder = extraction
    access = FeatureAccess.open(workspace, folder, ("scene",))
    before = access.read(["v2"])[0]["scene"].tolist()
    with FeatureStore.open(workspace.feature_store("demo", "scene")).writer() as writer:
        writer.add("v2", "newer", np.full((1, 3), 55, np.float16))
    assert access.read(["v2"])[0]["scene"].tolist() == before
    assert FeatureAccess.open(workspace, folder, ("scene",)).read(["v2"])[0]["scene"].tolist() == before


def test_a_feature_that_was_not_extracted_is_named_with_those_that_were(extraction: tuple[Workspace, Path]) -> None:
    with pytest.raises(MissingFeatures, match=r"features 'motion' are wanted, the recipe extracts scene, sound; add it"):
        FeatureAccess.open(*extraction, ("scene", "motion"))


@pytest.mark.parametrize("content", ["", "{", None])
def test_a_damaged_extraction_is_named_with_what_to_do(workspace: Workspace, tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "features.json").write_text(content)
    with pytest.raises(StorageError, match=r"cannot read .*features\.json.*--force extract_features"):
        FeatureAccess.open(workspace, tmp_path, ("scene",))


def test_a_video_may_lack_an_optional_feature(extraction: tuple[Workspace, Path]) -> None:
    strict = FeatureAccess.open(*extraction, ("scene", "sound"))
    assert IDS[0] not in strict.usable(IDS)
    access = FeatureAccess.open(*extraction, ("scene", "sound"), optional=("sound",))
    assert access.usable(IDS) == list(IDS)
    features, masks = access.read(IDS[:3])
    assert not masks["sound"][0].any() and not features["sound"][0].any()
    row = torch.from_numpy(rows_of(IDS[1], 2)).float()
    assert masks["sound"][1].any() and torch.equal(features["sound"][1][masks["sound"][1]], row)
    features, masks = access.read(IDS[:1])
    assert features["sound"].shape == (1, 1, 2) and not masks["sound"].any()


def test_frames_are_hidden_by_chance_alike_for_any_number_of_processes(extraction: tuple[Workspace, Path]) -> None:
    access = FeatureAccess.open(*extraction, ("scene",))

    def hidden(ranks: Ranks | None = None, share: float = 0.5) -> CaptionBatches:
        return CaptionBatches(access, CAPTIONS, INDICES, IDS, 4, 2, 3, None, ranks, frame_dropout=share, epoch_over="videos")

    def kept(batches: CaptionBatches, epoch: int) -> dict[str, list[bool]]:
        """without what is padding"""
        return {
            id: mask[: LENGTHS[id]].tolist()
            for batch in batches(epoch, 0)
            for id, mask in zip(batch.video_ids, batch.masks.get("scene", ()), strict=True)
        }

    alone = kept(hidden(), 0)
    assert {id: len(rows) for id, rows in alone.items()} == LENGTHS and all(map(any, alone.values()))
    assert not all(map(all, alone.values())), "nothing was hidden"
    assert kept(hidden(), 0) == alone and kept(hidden(), 1) != alone
    assert all(map(all, kept(hidden(share=0.0), 0).values()))
    together: dict[str, list[bool]] = {}
    for rank in range(2):
        ranks = Ranks()
        ranks.rank, ranks.size = rank, 2
        together |= kept(hidden(ranks), 0)
    assert together == alone


def test_the_share_of_hidden_rows_is_the_one_asked_for() -> None:
    mask = torch.ones(300, 12, dtype=torch.bool)
    mask[0], mask[1, 1:] = False, False
    few = drop_rows(mask, range(300), 0.7)
    assert 0.28 < few[2:].float().mean() < 0.34 and few[1:].any(1).all()
    assert not few[0].any() and few[1].tolist() == [True] + 11 * [False], "none is invented, and the only one stays"
