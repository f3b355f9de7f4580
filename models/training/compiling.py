"""torch.compile for the parts of a captioner that see whole batches at once: its encoder and its output layer.

The recurrence between them is left alone: its length changes with every batch, and each length would be compiled anew. Weights
and their names stay as they are, so checkpoints do not tell whether a training was compiled."""

from __future__ import annotations

from torch import nn

from models.layers.output_layer import WordLayer


def compile_parts(model: nn.Module) -> int:
    """Compile what can be compiled of a model, in place, for batches of any size; the code is made at its first use. Returns
    how many parts there are."""
    parts: list[nn.Module] = [part for part in model.modules() if isinstance(part, WordLayer)]
    encoder = getattr(model, "encoder", None)
    if isinstance(encoder, nn.Module):
        parts.append(encoder)
    for part in parts:
        part.compile(dynamic=True)
    return len(parts)
