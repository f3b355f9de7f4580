"""Batch norms folded into the convolutions before them: a GPU then reads and writes each feature map once less."""

from collections.abc import Callable, Mapping

import torch
from timm.layers import BatchNormAct2d
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

_CONVOLUTIONS, _NORMS = (nn.Conv1d, nn.Conv2d, nn.Conv3d), (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_TOLERANCE = 1e-3  # of the largest output; folding changes rounding alone


@torch.inference_mode()
def fold_batch_norms(net: nn.Module, run: Callable[[], Mapping[str, Tensor]]) -> int:
    """Fold each batch norm whose input is a convolution's output; `net` is in eval mode. Which these are is seen in one pass,
    `run`. If its outputs differ afterwards, something else reads a convolution, and all is put back. Returns how many."""
    made: dict[
        int, tuple[nn.Module, Tensor]
    ] = {}  # a tensor's id -> the convolution that made it, and the tensor, to keep the id
    pairs: dict[nn.Module, nn.Module] = {}  # batch norm -> convolution

    def note(module: nn.Module, _: object, output: Tensor) -> None:
        made[id(output)] = module, output

    def pair(norm: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if id(inputs[0]) in made:
            pairs[norm] = made[id(inputs[0])][0]

    hooks = [m.register_forward_hook(note) for m in net.modules() if isinstance(m, _CONVOLUTIONS)]
    hooks += [m.register_forward_pre_hook(pair) for m in net.modules() if isinstance(m, _NORMS)]
    before = run()
    for hook in hooks:
        hook.remove()
    made.clear()
    if len(set(pairs.values())) < len(pairs):  # a convolution that two batch norms read
        return 0
    replaced: dict[nn.Module, nn.Module] = {}
    for norm, convolution in pairs.items():
        replaced[convolution] = fuse_conv_bn_eval(convolution, norm)  # type: ignore[type-var, arg-type]
        replaced[norm] = norm.act if isinstance(norm, BatchNormAct2d) else nn.Identity()
    _swap(net, replaced)
    after = run()
    if all((after[name] - x).abs().max() <= _TOLERANCE * x.abs().max().clamp(min=1e-6) for name, x in before.items()):
        return len(pairs)
    _swap(net, {new: old for old, new in replaced.items()})
    return 0


def _swap(net: nn.Module, modules: Mapping[nn.Module, nn.Module]) -> None:
    for parent in list(net.modules()):
        for name, child in list(parent.named_children()):
            if child in modules:
                setattr(parent, name, modules[child])
