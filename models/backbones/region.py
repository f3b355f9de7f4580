"""Regions of a frame, by torchvision's Faster R-CNN: as Anderson et al. (2018) and G2L read theirs.

The regions are proposals, not final detections: a feature belongs to the box from which it was pooled, and the corrected
box of a detection is another one. Proposals are ranked by the probability of their best class, overlapping ones of the
same class are left out, and the first 16 stay (or as many as the name asks for, as in ...@800x36), however sure the net is of
them: the score tells."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torchvision.models.detection import FasterRCNN, fasterrcnn_resnet50_fpn_v2
from torchvision.models.detection.image_list import ImageList
from torchvision.ops import nms

from models.backbones.backbone import Backbone, Preprocessing
from models.backbones.weights import fill, read_state, seeded

NAME = "fasterrcnn_resnet50_fpn_v2"
REGIONS = 16
"""Regions kept of a frame (G2L's N_o)."""
PROPOSALS = 300
"""The likeliest proposals, which are classified and ranked; as many as Anderson et al. look at."""
SIZE = 1024
"""Length of a region's feature."""
CLASSES = 91
"""Things of COCO, with the background and the numbers that COCO left out."""
SHORT, LONGEST = 800, 1333
"""Sides of a picture that the net was trained on."""

_OVERLAP = 0.5  # of two boxes, above which the less likely one of the same class goes
_CLASSIFIER = "roi_heads.box_predictor.cls_score.weight"


class RegionBackbone:
    """Frames of one size -> their `regions` best regions (O), the best first."""

    clip: int | None = None

    def __init__(self, name: str, net: FasterRCNN, short: int, regions: int = REGIONS):
        self.name, self._count = name, regions
        self.outputs: Mapping[str, tuple[int, ...]] = {"regions": (regions, SIZE), "boxes": (regions, 6)}
        self.net: nn.Module = net.eval().requires_grad_(False)
        self.preprocessing: Preprocessing | None = Preprocessing(short=short, longest=round(short * LONGEST / SHORT))

    @torch.no_grad()
    def __call__(self, items: Tensor) -> dict[str, Tensor]:
        """items (N, 1, H, W, 3) uint8 -> regions (N, O, 1024) and boxes (N, O, 6): left, top, right, bottom from 0 to 1
        of the frame, score, label. Where there are fewer regions, the rows left are zero in both; no region's label is."""
        net: Any = self.net
        count, _, height, width, _ = items.shape
        # Contiguous first: the order of pixels in memory decides how a convolution sums, and so the last bits.
        pixels = net.transform.normalize(items.contiguous()[:, 0].permute(0, 3, 1, 2).float() / 255)
        # Filled up with zeros to whole cells of the coarsest map; the net's own resizing is passed by.
        pixels = nn.functional.pad(pixels, (0, -width % 32, 0, -height % 32))
        maps = {level: values.float() for level, values in net.backbone(pixels).items()}
        with torch.autocast(items.device.type, enabled=False):  # in half precision, places would be off by some pixels
            proposals, _ = net.rpn(ImageList(pixels, [(height, width)] * count), maps)
        regions = items.new_zeros((count, self._count, SIZE), dtype=torch.float32)
        boxes = items.new_zeros((count, self._count, 6), dtype=torch.float32)
        frame = boxes.new_tensor([width, height, width, height])
        for n, proposed in enumerate(proposals):
            # One frame at a time: in one heap, a frame's bits would depend on how many proposals its neighbours have.
            own = {level: values[n : n + 1] for level, values in maps.items()}
            features, found, scores, labels = self._best(own, proposed, pixels.shape[2:])
            regions[n, : len(features)] = features
            boxes[n, : len(found)] = torch.cat([found / frame, scores[:, None], labels[:, None]], 1)
        return {"regions": regions, "boxes": boxes}

    def _best(self, maps: Mapping[str, Tensor], proposals: Tensor, padded: torch.Size) -> Iterator[Tensor]:
        """One frame's feature maps and proposals (P, 4) -> features (K, 1024), boxes (K, 4), scores (K,), labels (K,)."""
        heads = cast(Any, self.net).roi_heads
        # From this size it derives, at its first call and for ever, how coarse the maps are: the filled-up one is exact.
        features = heads.box_head(heads.box_roi_pool(maps, [proposals], [tuple(padded)])).float()
        logits, _ = heads.box_predictor(features)
        scores, labels = logits.float().softmax(1)[:, 1:].max(1)
        rank = _ranked(scores, proposals)
        best = rank[_distinct(proposals[rank], scores[rank], labels[rank] + 1)[: self._count]]
        return (x[best] for x in (features, proposals, scores, labels + 1))


def load(name: str, weights: Path | None, seed: int) -> Backbone:
    """The detector with the weights of a file in torchvision's layout, of any number of classes, or random ones of the
    seed. A name such as fasterrcnn_resnet50_fpn_v2@320 asks for smaller frames, with short sides of 320 pixels, and
    ...@320x36 for 36 regions of each."""
    named = re.fullmatch(rf"{NAME}(?:@([1-9]\d{{1,3}})(?:x([1-9]\d?\d?))?)?", name)
    if named is None:
        raise ValueError(f"no region backbone '{name}'; give {NAME}, or {NAME}@800x36 for frames of 800 and 36 regions")

    state = None if weights is None else read_state(weights, name)
    classifier = (state or {}).get(_CLASSIFIER)
    net = seeded(lambda: _net(CLASSES if classifier is None else len(classifier)), seed)
    if state is not None and weights is not None:
        fill(net, state, name, weights)
    return RegionBackbone(name, net, int(named[1] or SHORT), int(named[2] or REGIONS))


def _net(classes: int) -> FasterRCNN:
    options: dict[str, Any] = {"weights_backbone": None, "rpn_post_nms_top_n_test": PROPOSALS}
    return fasterrcnn_resnet50_fpn_v2(weights=None, num_classes=classes, **options)


def _ranked(scores: Tensor, boxes: Tensor) -> Tensor:
    """Indices by falling score; among equals, by the boxes' coordinates."""
    rank = torch.arange(len(scores), device=scores.device)
    for key in (*boxes.unbind(1)[::-1], -scores):
        rank = rank[key[rank].argsort(stable=True)]
    return rank


def _distinct(boxes: Tensor, scores: Tensor, labels: Tensor) -> Tensor:
    """Indices, rising, of the boxes that overlap no better one of their label. The best come first."""
    # Boxes of different labels are moved apart, so that one pass serves them all.
    apart = boxes.double() + (labels * (boxes.max() + 1 if len(boxes) else 1))[:, None]
    return nms(apart, scores.double(), _OVERLAP).sort().values
