"""Where a captioner looked, for the report: attention over time, VRE's key frame, and the regions that each word looks at.

Regions have places where they are cells of a grid, or where the recipe keeps the boxes of a detector beside its regions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from models.captioner import Captioner
from models.captioners.g2l.captioner import G2lOptions
from models.captioners.g2l.decoder import GruDecoder
from models.captioners.g2l.encoder import G2lAttention
from models.captioners.gld import TopDownOptions
from models.captioners.vre.captioner import VreOptions
from models.types import BOS
from models.zoo import CaptionerOptions
from storage.results import CaptionRow
from storage.text.vocabulary import Vocabulary
from tasks.framework.feature_access import FeatureAccess
from tasks.reporting.page import Region

_BATCH = 64
_SHOWN = 4  # regions of a word
_LEAST = 0.05  # share of the attention below which a region is not shown

Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class AttentionMap:
    """What one video's caption looked at. weights: words x positions, or None."""

    weights: list[list[float]] | None = None
    timeline: bool = True
    """whether the positions are spread over the video; not so, if rows of several features follow each other"""
    key_time: float | None = None
    regions: tuple[tuple[Region, ...], ...] = ()


@dataclass(frozen=True)
class Places:
    """Where the regions of one feature are: the same cells in every frame, or boxes that are features themselves."""

    cells: tuple[Box, ...] = ()
    boxes: FeatureAccess | None = None

    def of(self, video_id: str, step: int) -> Sequence[Box]:
        if self.boxes is None:
            return self.cells
        name = self.boxes.names[0]
        rows = self.boxes.views[name].read(video_id, self.boxes.rows[name][video_id])
        return [cast(Box, tuple(map(float, row[:4]))) for row in rows[step]] if step < len(rows) else ()


def looks_again(options: CaptionerOptions) -> bool:
    """Whether what a captioner looked at is only known by letting it look once more; else its captions tell."""
    return (isinstance(options, VreOptions) and options.steps == 2) or (
        isinstance(options, G2lOptions) and options.regions is not None
    )


def find_attention_maps(
    captioner: Captioner | None,
    options: CaptionerOptions,
    access: FeatureAccess,
    places: Places | None,
    vocabulary: Vocabulary,
    rows: Sequence[CaptionRow],
    device: str,
) -> dict[str, AttentionMap]:
    """video id -> what its caption looked at. `places` are those of the features that have regions; the captioner is needed
    only if it `looks_again`."""
    found = {row.video_id: _over_time(options, access, places, row) for row in rows}
    if captioner is None:
        return found
    if isinstance(options, VreOptions) and options.steps == 2:
        for id, second in _key_times(captioner, options, access, rows, device):
            found[id] = AttentionMap(found[id].weights, found[id].timeline, second)
    if isinstance(options, G2lOptions) and options.regions is not None and places is not None:
        for id, regions in _g2l_regions(captioner, options.regions, access, places, vocabulary, rows, device):
            found[id] = AttentionMap(found[id].weights, found[id].timeline, None, regions)
    return found


def region_feature(options: CaptionerOptions, access: FeatureAccess) -> str | None:
    """The feature whose regions a captioner attends to, if it does."""
    if isinstance(options, G2lOptions):
        return options.regions
    if isinstance(options, TopDownOptions) and len(options.features) == 1:
        name = options.features[0]
        return name if len(access.about[name].get("shape", [])) == 2 else None
    return None


def cells_of(count: int) -> tuple[Box, ...]:
    """The boxes of a square grid's cells, row by row; none if it is not square."""
    side = math.isqrt(count)
    if side * side != count:
        return ()
    return tuple(
        (column / side, row / side, (column + 1) / side, (row + 1) / side)
        for row in range(side)
        for column in range(side)
    )


def boxes_beside(features: Mapping[str, Mapping[str, Any]], regions: str) -> str | None:
    """The feature that holds the boxes of `regions`: the same net on the same frames, with the output 'boxes'."""
    mine = {name: value for name, value in features[regions].items() if name != "output"}
    for name, feature in features.items():
        if feature.get("output") == "boxes" and {n: v for n, v in feature.items() if n != "output"} == mine:
            return name
    return None


def _over_time(
    options: CaptionerOptions, access: FeatureAccess, places: Places | None, row: CaptionRow
) -> AttentionMap:
    """The attention of the search, without the positions that only longer videos of its batch have."""
    if not row.attention:
        return AttentionMap()
    weights = np.asarray(row.attention, np.float64)
    name = getattr(options, "temporal", None) or getattr(options, "frames", None) or options.features[0]
    key = access.rows[name].get(row.video_id)
    if key is None:
        return AttentionMap(row.attention, timeline=False)
    steps = len(access.views[name].read(row.video_id, key))
    regions: tuple[tuple[Region, ...], ...] = ()
    joined = getattr(getattr(options, "base", options), "join", "depth") == "time" and len(options.features) > 1
    if isinstance(options, TopDownOptions) and region_feature(options, access) == name:
        cells = int(access.about[name]["shape"][0])
        folded = weights[:, : steps * cells].reshape(len(weights), steps, cells)
        regions = _likeliest_cells(folded, access, name, row.video_id, places)
        weights = folded.sum(-1)
    kept = weights if joined else weights[:, :steps]
    return AttentionMap(kept.round(4).tolist(), not joined, None, regions)


def _likeliest_cells(
    weights: np.ndarray, access: FeatureAccess, name: str, id: str, places: Places | None
) -> tuple[tuple[Region, ...], ...]:
    """weights (words, steps, cells) -> the regions of each word."""
    times = _times(access, name, id)
    if places is None or times is None:
        return ()
    count = weights.shape[2]
    return tuple(
        tuple(
            Region(float(times[n // count]), places.of(id, n // count)[n % count], float(word.flat[n]))
            for n in np.argsort(-word, axis=None, kind="stable")[:_SHOWN]
            if word.flat[n] >= _LEAST
        )
        for word in weights
    )


def _times(access: FeatureAccess, name: str, id: str) -> np.ndarray | None:
    return access.views[name].pts(id, access.rows[name][id])


def _batches(
    captioner: Captioner, access: FeatureAccess, rows: Sequence[CaptionRow], device: str
) -> Iterator[tuple[Sequence[CaptionRow], Any]]:
    """Rows in batches, each with the memory of its videos."""
    for start in range(0, len(rows), _BATCH):
        batch = rows[start : start + _BATCH]
        features, masks = access.read([row.video_id for row in batch])
        with torch.inference_mode():
            memory = captioner.encode(
                {n: x.to(device) for n, x in features.items()}, {n: m.to(device) for n, m in masks.items()}
            )
        yield batch, memory


def _key_times(
    captioner: Captioner, options: VreOptions, access: FeatureAccess, rows: Sequence[CaptionRow], device: str
) -> Iterator[tuple[str, float]]:
    for batch, memory in _batches(captioner, access, rows, device):
        for row, frame in zip(batch, memory.extras["key_frame"].tolist(), strict=True):
            times = _times(access, options.temporal, row.video_id)
            if times is not None and frame < len(times):
                yield row.video_id, float(times[int(frame)])


def _g2l_regions(
    captioner: Captioner,
    name: str,
    access: FeatureAccess,
    places: Places,
    vocabulary: Vocabulary,
    rows: Sequence[CaptionRow],
    device: str,
) -> Iterator[tuple[str, tuple[tuple[Region, ...], ...]]]:
    """The captions once more, word by word, to see which regions of which key frames each word was read from."""
    decoder = cast(GruDecoder, captioner.decoder)
    local = cast(G2lAttention, decoder.reader).local
    if local is None:
        return
    for batch, memory in _batches(captioner, access, rows, device):
        said = [vocabulary.encode(row.caption.split(), 10_000)[1:-1] for row in batch]
        looks: list[tuple[Tensor, Tensor]] = []
        watching = local.register_forward_hook(lambda _, given, __: looks.append(local.regions(*given)[:2]))  # noqa: B023
        with torch.inference_mode():
            state = decoder.start(memory)
            for place in range(max(map(len, said), default=0)):
                before = [BOS if not place else words[min(place, len(words)) - 1] if words else BOS for words in said]
                _, state, _ = decoder.step(torch.tensor(before, device=device), state, memory)
        watching.remove()
        for number, (row, words) in enumerate(zip(batch, said, strict=True)):
            times = _times(access, name, row.video_id)
            if times is not None:
                steps = ((weights[number].cpu(), frames[number].cpu()) for weights, frames in looks[: len(words)])
                yield row.video_id, tuple(_likeliest(*step, times, places, row.video_id) for step in steps)


def _likeliest(weights: Tensor, frames: Tensor, times: np.ndarray, places: Places, id: str) -> tuple[Region, ...]:
    """weights (k, O) over the regions of the frames (k,) of one word -> the regions it looks at most."""
    found = []
    for share, n in zip(*weights.flatten().topk(min(_SHOWN, weights.numel())), strict=True):
        frame, region = int(frames[n // weights.shape[1]]), int(n % weights.shape[1])
        boxes = places.of(id, frame) if frame < len(times) else ()
        if share >= _LEAST and region < len(boxes):
            found.append(Region(float(times[frame]), boxes[region], float(share)))
    return tuple(found)
