"""Cross-entropy (XE): the captioner should find every next word of the ground truth likely."""

from __future__ import annotations

from torch import Tensor, nn

from models.captioner import Captioner
from models.types import Batch


class CrossEntropy:
    """(captioner, batch) -> the mean over all real tokens, EOS included, of -log p(token). Caption weights play no part.

    With label smoothing e, a token's target is (1 - e) of itself and e spread evenly over the vocabulary."""

    def __init__(self, label_smoothing: float = 0.0):
        if not 0 <= label_smoothing < 1:
            raise ValueError(f"label_smoothing is {label_smoothing}; it must be at least 0 and less than 1")
        self.label_smoothing = label_smoothing

    def __call__(self, captioner: Captioner, batch: Batch) -> Tensor:
        logits, tokens = captioner.word_logits(batch)
        return nn.functional.cross_entropy(logits, tokens, label_smoothing=self.label_smoothing)
