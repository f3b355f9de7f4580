"""torch.compile for the modules of a captioner that see whole batches at once: its encoder and its output layer.

The recurrence between them is not compiled: its length changes with every batch, and each length would be compiled anew.
Weights and their names stay as they are, so a checkpoint is the same with and without compilation."""

from torch import nn

from models.layers.words import OutputLayer


def compile_modules(model: nn.Module) -> int:
    """Compile these modules of a model in place, for batches of any size, at their first use. Returns how many there are."""
    modules: list[nn.Module] = [module for module in model.modules() if isinstance(module, OutputLayer)]
    encoder = getattr(model, "encoder", None)
    if isinstance(encoder, nn.Module):
        modules.append(encoder)
    for module in modules:
        module.compile(dynamic=True)
    return len(modules)
