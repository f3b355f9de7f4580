"""Cross-entropy (XE) of the ground-truth tokens, and discriminative cross-entropy (DXE), which weighs captions."""

from typing import Self

from torch import Tensor

from models.captioner import Captioner
from models.decoding.scheduled_sampling import ALWAYS_TRUE, ScheduledSampling
from models.losses.token_likelihood import token_log_likelihood
from models.types import Batch


class CrossEntropy:
    """(captioner, batch) -> the mean over all valid tokens, EOS included, of -log p(token). Caption weights are ignored.

    With label smoothing e, a token's target is (1 - e) of itself and e spread evenly over the vocabulary."""

    def __init__(self, label_smoothing: float = 0.0, sampling: ScheduledSampling = ALWAYS_TRUE, epoch: int = 0) -> None:
        if not 0 <= label_smoothing < 1:
            raise ValueError(f"label_smoothing is {label_smoothing}; it must be at least 0 and less than 1")
        self.label_smoothing, self.sampling, self.epoch = label_smoothing, sampling, epoch

    def at(self, epoch: int) -> Self:
        """The same, with the schedule as of `epoch`."""
        return type(self)(self.label_smoothing, self.sampling, epoch)

    def count(self, batch: Batch) -> int:
        """The valid tokens of a batch's captions, EOS included."""
        return 0 if batch.valid is None else int(batch.valid.host.sum())

    def __call__(self, captioner: Captioner, batch: Batch) -> Tensor:
        logits, tokens = captioner.word_logits(batch, self.sampling.at(self.epoch), self.sampling.own)
        return -token_log_likelihood(logits, tokens, self.label_smoothing).mean()


class DiscriminativeCrossEntropy(CrossEntropy):
    """(captioner, batch) -> -sum(w log p(token)) / valid tokens, with w the batch's raw weight of the caption (GL-RG eq. 8)."""

    def __call__(self, captioner: Captioner, batch: Batch) -> Tensor:
        if batch.weights is None:
            raise ValueError(
                f"the captions of {', '.join(batch.video_ids[:3])}... have no weights, and discriminative cross-entropy "
                "weighs captions: compute caption weights with the text, or train with plain cross-entropy"
            )
        logits, tokens = captioner.word_logits(batch, self.sampling.at(self.epoch), self.sampling.own)
        valid = batch.valid
        assert batch.tokens is not None and valid is not None  # word_logits has checked it
        if batch.weights.shape != batch.tokens.shape[:1]:
            shape = tuple(batch.weights.shape)
            raise ValueError(f"{len(batch.tokens)} captions came with weights of shape {shape}: one each is wanted")
        weights = valid.select(batch.weights.unsqueeze(1).expand(valid.host.shape))
        return -(weights * token_log_likelihood(logits, tokens, self.label_smoothing)).mean()
