"""What each word of a caption attended to: positions in time, VRE's key frame, regions within frames.

The boxes of regions are known where the regions are cells of a grid, or where the recipe keeps a detector's boxes beside them."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from models.captioner import Captioner
from models.captioners.g2l.captioner import G2lOptions
from models.captioners.g2l.decoder import GruDecoder
from models.captioners.g2l.encoder import G2lAttention
from models.captioners.gld import TopDownOptions
from models.captioners.vre.captioner import RefocusDecoder, VreCaptioner, VreOptions
from models.decoding.beam_search import SearchOptions
from models.types import BOS
from models.zoo import CaptionerOptions
from storage.results import CaptionRow
from storage.text.vocabulary import Vocabulary
from tasks.framework.feature_access import FeatureAccess
from tasks.inference.generate import rank_captions
from tasks.reporting.pages import Box, CellAttention, Region

_BATCH = 64
_REGIONS_PER_WORD = 4
_LEAST_WEIGHT = 0.05  # share of the attention below which a region is not shown

WordRegions = tuple[tuple[Region, ...], ...]
"""for each word of a caption the regions that it attends to most"""


@dataclass(frozen=True)
class AttentionMap:
    """What the words of one caption attended to. weights: words x positions, or None."""

    weights: list[list[float]] | None = None
    timeline: bool = True
    """whether the positions are spread over the video; not so, if rows of several features follow each other"""
    key_time: float | None = None
    regions: WordRegions = ()
    cells: CellAttention | None = None
    first_caption: str = ""
    """of a captioner that encodes twice: what it says after the first step"""


@dataclass(frozen=True)
class RegionBoxes:
    """Where the regions of one feature lie: the same grid cells in every frame, or boxes that are a feature themselves."""

    cells: tuple[Box, ...] = ()
    boxes: FeatureAccess | None = None

    def in_frame(self, video_id: str, frame: int) -> Sequence[Box]:
        if self.boxes is None:
            return self.cells
        name = self.boxes.names[0]
        rows = self.boxes.views[name].read(video_id, self.boxes.rows[name][video_id])
        return [cast(Box, tuple(map(float, row[:4]))) for row in rows[frame]] if frame < len(rows) else ()


def needs_captioner(options: CaptionerOptions) -> bool:
    """Whether the attention maps take another forward pass; otherwise the caption rows hold all that is needed."""
    if isinstance(options, G2lOptions):
        return options.regions is not None
    return isinstance(options, VreOptions) and options.steps == 2


def find_attention_maps(
    captioner: Captioner | None,
    options: CaptionerOptions,
    access: FeatureAccess,
    boxes: RegionBoxes | None,
    seen: tuple[float, float] | None,
    vocabulary: Vocabulary,
    rows: Sequence[CaptionRow],
    device: str,
) -> dict[str, AttentionMap]:
    """video id -> attention map of its caption. The captioner is only read where `needs_captioner`; `seen` is the part of a frame
    that grids cover."""
    maps = {row.video_id: _over_time(options, access, boxes, seen, row) for row in rows}
    if captioner and isinstance(options, VreOptions) and options.steps == 2:
        first = _first_step_captions(cast(VreCaptioner, captioner), access, vocabulary, rows, device)
        for batch, memory in _batches(captioner, access, rows, device):
            spaces = _cell_weights(captioner, vocabulary, batch, memory)
            for row, frame, per_word in zip(batch, memory.extras["key_frame"].tolist(), spaces, strict=True):
                found = replace(maps[row.video_id], first_caption=first[row.video_id])
                times = _times(access, options.temporal, row.video_id)
                if times is not None and frame < len(times):
                    key_time = float(times[int(frame)])
                    # Cells are means over time; they are shown on the key frame.
                    square = per_word and grid_cells(per_word[0].shape[1])
                    cells = CellAttention(np.stack(per_word), (key_time,), seen) if square else None
                    found = replace(found, key_time=key_time, cells=cells)
                maps[row.video_id] = found
    if captioner and boxes and isinstance(options, G2lOptions) and options.regions is not None:
        for batch, memory in _batches(captioner, access, rows, device):
            for row, words in zip(batch, _region_weights(captioner, vocabulary, batch, memory), strict=False):
                times = _times(access, options.regions, row.video_id)
                if times is not None:
                    regions = tuple(_top_regions(*word, times, boxes, row.video_id) for word in words)
                    maps[row.video_id] = replace(maps[row.video_id], regions=regions)
    return maps


def region_feature(options: CaptionerOptions, access: FeatureAccess) -> str | None:
    """The feature whose regions (or cells) a captioner attends to, if it does."""
    if isinstance(options, G2lOptions):
        return options.regions
    if isinstance(options, VreOptions):
        return options.spatial
    if isinstance(options, TopDownOptions) and len(options.features) == 1:
        name = options.features[0]
        return name if len(access.about[name].get("shape", [])) == 2 else None
    return None


def grid_cells(count: int) -> tuple[Box, ...]:
    """The boxes of a square grid's cells, row by row; none if it is not square."""
    side = math.isqrt(count)
    if side * side != count:
        return ()
    cells = ((n % side, n // side) for n in range(count))
    return tuple((x / side, y / side, (x + 1) / side, (y + 1) / side) for x, y in cells)


def boxes_feature(features: Mapping[str, Mapping[str, Any]], regions: str) -> str | None:
    """The feature that holds the boxes of `regions`: the same net on the same frames, with the output 'boxes'."""
    wanted = {**features[regions], "output": "boxes"}
    return next((name for name, feature in features.items() if feature == wanted), None)


def _over_time(
    options: CaptionerOptions,
    access: FeatureAccess,
    boxes: RegionBoxes | None,
    seen: tuple[float, float] | None,
    row: CaptionRow,
) -> AttentionMap:
    """The weights that the search recorded, without the positions that only longer videos of its batch have."""
    if not row.attention:
        return AttentionMap()
    weights = np.asarray(row.attention, np.float64)
    name = getattr(options, "temporal", None) or getattr(options, "frames", None) or options.features[0]
    key = access.rows[name].get(row.video_id)
    if key is None:
        return AttentionMap(row.attention, timeline=False)
    steps = len(access.views[name].read(row.video_id, key))
    regions: WordRegions = ()
    grid = None
    joined = getattr(getattr(options, "base", options), "join", "depth") == "time" and len(options.features) > 1
    if isinstance(options, TopDownOptions) and region_feature(options, access) == name:
        cells = int(access.about[name]["shape"][0])
        folded = weights[:, : steps * cells].reshape(len(weights), steps, cells)
        times, frames = _times(access, name, row.video_id), np.arange(steps)
        if boxes is not None and boxes.cells and times is not None:
            grid = CellAttention(folded, times.tolist(), seen)
        elif boxes is not None and times is not None:
            regions = tuple(_top_regions(word, frames, times, boxes, row.video_id) for word in folded)
        weights = folded.sum(-1)
    kept = weights if joined else weights[:, :steps]
    return AttentionMap(kept.round(4).tolist(), not joined, None, regions, grid)


def _top_regions(weights: np.ndarray, frames: np.ndarray, times: np.ndarray, boxes: RegionBoxes, id: str) -> tuple[Region, ...]:
    """One word's weights (K, O) over the O regions of the frames (K,) -> the regions that it attends to most."""
    found = []
    for n in np.argsort(-weights, axis=None, kind="stable")[:_REGIONS_PER_WORD]:
        step, region = divmod(int(n), weights.shape[1])
        weight, frame = float(weights.flat[n]), int(frames[step])
        in_frame = boxes.in_frame(id, frame) if frame < len(times) else ()
        if weight >= _LEAST_WEIGHT and region < len(in_frame):
            found.append(Region(float(times[frame]), in_frame[region], weight))
    return tuple(found)


def _times(access: FeatureAccess, name: str, id: str) -> np.ndarray | None:
    return access.views[name].pts(id, access.rows[name][id])


def _batches(
    captioner: Captioner, access: FeatureAccess, rows: Sequence[CaptionRow], device: str
) -> Iterator[tuple[Sequence[CaptionRow], Any]]:
    """Rows in batches, each with the memory of its videos."""
    for start in range(0, len(rows), _BATCH):
        batch = rows[start : start + _BATCH]
        with torch.inference_mode():
            memory = captioner.encode(*access.read([row.video_id for row in batch], device))
        yield batch, memory


def _region_weights(
    captioner: Captioner, vocabulary: Vocabulary, batch: Sequence[CaptionRow], memory: Any
) -> Iterator[list[tuple[np.ndarray, np.ndarray]]]:
    """Decode the captions again, teacher-forced: for each word of each caption, its weights (K, O) of the O regions of the K key
    frames, and these frames (K,)."""
    decoder = cast(GruDecoder, captioner.decoder)
    local = cast(G2lAttention, decoder.reader).local
    if local is None:
        return
    recorded: list[tuple[Tensor, Tensor]] = []
    hook = local.register_forward_hook(lambda _, inputs, __: recorded.append(local.regions(*inputs)[:2]))
    lengths = _decode_again(captioner, vocabulary, batch, memory)
    hook.remove()
    for n, length in enumerate(lengths):
        yield [(weights[n].cpu().numpy(), frames[n].cpu().numpy()) for weights, frames in recorded[:length]]


def _cell_weights(
    captioner: Captioner, vocabulary: Vocabulary, batch: Sequence[CaptionRow], memory: Any
) -> list[list[np.ndarray]]:
    """VRE's attention over space: for each word of each caption its weights (1, S) over the cells; none without cells."""
    decoder = cast(RefocusDecoder, captioner.decoder)
    if decoder.over_space is None:
        return [[] for _ in batch]
    recorded: list[Tensor] = []
    hook = decoder.weigh_space.register_forward_hook(lambda _, __, weights: recorded.append(weights))
    lengths = _decode_again(captioner, vocabulary, batch, memory)
    hook.remove()
    return [[weights[n : n + 1].cpu().numpy() for weights in recorded[:length]] for n, length in enumerate(lengths)]


def _decode_again(captioner: Captioner, vocabulary: Vocabulary, batch: Sequence[CaptionRow], memory: Any) -> list[int]:
    """Take the steps of the captions, teacher-forced, for hooks to record; the captions' lengths in words."""
    captions = [vocabulary.encode(row.caption.split(), 10_000)[1:-1] for row in batch]
    with torch.inference_mode():
        state = captioner.decoder.start(memory)
        for step in range(max(map(len, captions), default=0)):
            previous = [words[min(step, len(words)) - 1] if step and words else BOS for words in captions]
            _, state, _ = captioner.decoder.step(torch.tensor(previous, device=memory.mask.device), state, memory)
    return [len(words) for words in captions]


def _first_step_captions(
    captioner: VreCaptioner, access: FeatureAccess, vocabulary: Vocabulary, rows: Sequence[CaptionRow], device: str
) -> dict[str, str]:
    """video id -> the greedy caption after VRE's first step."""
    longest = max((len(row.caption.split()) for row in rows), default=0) + 5
    captioner.active_steps = 1
    try:
        options = SearchOptions(width=1, max_length=longest)
        ranked = rank_captions(captioner, access, vocabulary, [row.video_id for row in rows], options, device)
    finally:
        captioner.active_steps = 2
    return {row.video_id: row.caption for row, *_ in ranked}
