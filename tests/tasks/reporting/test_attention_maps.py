"""What words attend to: positions in time, key frames, regions with their boxes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from models.captioners.g2l.captioner import G2lOptions
from models.captioners.gld import TopDownOptions
from models.captioners.lstm import SaLstmOptions
from models.captioners.vre.captioner import VreOptions
from models.decoding.beam_search import SearchOptions
from models.zoo import build_captioner
from storage.media.frame_sampling import Clips
from storage.results import CaptionRow
from storage.text.references import References
from tasks.extract_features import ExtractOptions
from tasks.extraction.extractors import TaggerFeature
from tasks.framework.feature_access import FeatureAccess
from tasks.inference.generate import rank_captions
from tasks.reporting.attention_maps import RegionBoxes, boxes_feature, find_attention_maps, grid_cells
from tests.tasks.toy_run import SAMPLING, ToyRun

GRID = ExtractOptions(
    dataset="demo",
    features={"scene": TaggerFeature(sampling="clips"), "cells": TaggerFeature(sampling="two", output="grid")},
    sampling={"clips": SAMPLING, "two": Clips(positions=2, length=3, step=2)},
)


@dataclass(frozen=True)
class OneCell(FeatureAccess):
    """Features whose grid has nothing but its cell 5, so that a region attention has nothing else to attend to."""

    def read(self, ids, device="cpu"):
        features, masks = super().read(ids)
        kept = torch.zeros_like(features["cells"])
        kept[..., 5, :] = 1.0
        return {**features, "cells": kept}, masks


@dataclass(frozen=True)
class Averaged(FeatureAccess):
    """Cells averaged over time, as `over_time: mean` stores them."""

    def read(self, ids, device="cpu"):
        features, masks = super().read(ids)
        cells = {"cells": features["cells"].mean(1)}
        return features | cells, masks | {"cells": torch.ones(len(ids), 16, dtype=torch.bool)}


@pytest.fixture
def grid(toy: ToyRun, alone) -> tuple[FeatureAccess, References]:
    from tasks.extract_features import extract_features
    from tasks.sample_frames import SamplingOptions, sample_frames

    videos = toy.catalogue().ref.part("videos")
    two = alone(sample_frames, SamplingOptions(sampling=GRID.sampling["two"]), toy.data, videos=videos)
    inputs = {"videos": videos, "tagger": toy.tagger().ref, "frame_plans": (toy.frames().ref, two.ref)}
    job = alone(extract_features, GRID, toy.data, **inputs)
    return FeatureAccess.open(job.workspace, job.folder, ("scene", "cells")), References(toy.text().folder)


def a_row(access: FeatureAccess, caption: str, attention: list[list[float]] | None = None) -> CaptionRow:
    return CaptionRow(next(iter(access.rows["scene"])), caption, -1.0, attention)


def test_each_word_of_g2l_shows_the_cell_that_it_was_read_from(grid) -> None:
    opened, text = grid
    access = OneCell(opened.names, opened.views, opened.rows, opened.about)
    options = G2lOptions(
        frames="scene", clips="scene", regions="cells", region_stride=2, projection=8, attention=8, aligned=8, hidden=8
    )
    torch.manual_seed(0)
    net = build_captioner(options, access.sizes, len(text.vocabulary)).eval()
    words = text.vocabulary.words[5:8]
    row = a_row(access, " ".join(words))
    boxes = RegionBoxes(grid_cells(16))
    found = find_attention_maps(net, options, access, boxes, None, text.vocabulary, [row], "cpu")[row.video_id]
    times = access.views["cells"].pts(row.video_id)
    assert len(found.regions) == 3
    for regions in found.regions:
        assert {region.box for region in regions} == {(0.25, 0.25, 0.5, 0.5)}  # second row, second column
        assert [region.weight for region in regions] == pytest.approx([1.0, 1.0])  # of both key frames
        assert sorted(region.time for region in regions) == pytest.approx(sorted(times))


def test_the_key_frame_of_vre_is_a_moment_of_the_video(grid) -> None:
    access, text = grid
    options = VreOptions(temporal="scene", hidden=8)
    one = FeatureAccess(("scene",), access.views, access.rows, access.about)
    torch.manual_seed(3)
    net = build_captioner(options, {"scene": access.sizes["scene"]}, len(text.vocabulary)).eval()
    rows = [CaptionRow(id, "a red circle", -1.0) for id in access.rows["scene"]]
    found = find_attention_maps(net, options, one, None, None, text.vocabulary, rows, "cpu")
    for row in rows:
        features, masks = one.read([row.video_id])
        frame = int(net.encode(features, masks).extras["key_frame"])
        assert found[row.video_id].key_time == pytest.approx(one.views["scene"].pts(row.video_id)[frame])
    assert net.active_steps == 2
    net.active_steps = 1  # what it says after the first step alone
    said = rank_captions(net, one, text.vocabulary, [rows[0].video_id], SearchOptions(width=1, max_length=8), "cpu")
    assert found[rows[0].video_id].first_caption == said[0][0].caption


def test_each_word_of_vre_shows_the_cells_that_it_attends_to_on_the_key_frame(grid) -> None:
    access, text = grid
    options = VreOptions(temporal="scene", spatial="cells", hidden=8)
    averaged = Averaged(access.names, access.views, access.rows, access.about)
    torch.manual_seed(3)
    sizes = {"scene": access.sizes["scene"], "cells": access.sizes["cells"]}
    net = build_captioner(options, sizes, len(text.vocabulary)).eval()
    for parameter in net.decoder.over_space.parameters():
        parameter.data.mul_(30)
    rows = [CaptionRow(id, "a red circle", -1.0) for id in access.rows["scene"]]
    found = find_attention_maps(net, options, averaged, None, None, text.vocabulary, rows, "cpu")
    for row in rows:
        each = found[row.video_id]
        assert each.cells is not None and each.cells.times == (each.key_time,)
        assert each.cells.weights.shape == (3, 1, 16)  # words, the key frame, cells
        assert each.cells.weights.sum(-1) == pytest.approx(np.ones((3, 1)))


def test_positions_that_only_longer_videos_have_are_left_out(grid) -> None:
    access, text = grid
    options = SaLstmOptions(features=("scene",), embedding=8, hidden=8, attention=8)
    net = build_captioner(options, access.sizes, len(text.vocabulary)).eval()
    row = a_row(access, "one", [[0.1, 0.2, 0.3, 0.4, 0.0, 0.0]])
    found = find_attention_maps(net, options, access, None, None, text.vocabulary, [row], "cpu")[row.video_id]
    assert (found.weights, found.timeline) == ([[0.1, 0.2, 0.3, 0.4]], True)
    both = SaLstmOptions(features=("scene", "scene2"), join="time", embedding=8, hidden=8, attention=8)
    joined = find_attention_maps(net, both, access, None, None, text.vocabulary, [row], "cpu")[row.video_id]
    assert (joined.weights, joined.timeline) == (row.attention, False)


def test_attention_over_the_cells_of_a_grid_is_given_by_frame_and_by_cell(grid) -> None:
    access, text = grid
    cells = FeatureAccess(("cells",), access.views, access.rows, access.about)
    options = TopDownOptions(features=("cells",), embedding=8, hidden=8, attention=8)
    net = build_captioner(options, {"cells": access.sizes["cells"]}, len(text.vocabulary)).eval()
    weights = np.full(32, 0.2 / 31)
    weights[16 + 15] = 0.8  # the last cell of the second frame
    row = a_row(access, "one", [weights.tolist()])
    boxes, seen = RegionBoxes(grid_cells(16)), (0.89, 0.89)
    found = find_attention_maps(net, options, cells, boxes, seen, text.vocabulary, [row], "cpu")[row.video_id]
    assert found.weights is not None and found.weights[0] == pytest.approx([0.1032, 0.8968], abs=1e-3)
    assert found.cells is not None and found.cells.seen == seen
    assert found.cells.weights.shape == (1, 2, 16) and found.cells.weights[0, 1, 15] == pytest.approx(0.8)
    assert found.cells.times == pytest.approx(access.views["cells"].pts(row.video_id))


def test_boxes_are_those_of_the_same_net_on_the_same_frames():
    regions = {"kind": "backbone", "net": "fasterrcnn_resnet50_fpn_v2", "output": "regions", "sampling": "frames"}
    features = {"regions": regions, "far": regions | {"output": "boxes", "sampling": "sparse"}}
    assert boxes_feature(features, "regions") is None
    assert boxes_feature(features | {"boxes": regions | {"output": "boxes"}}, "regions") == "boxes"
    assert grid_cells(5) == ()
