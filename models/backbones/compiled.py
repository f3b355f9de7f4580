"""A backbone as code made for this very CPU: batch norms folded into convolutions, weights packed once, steps fused.

torch's compiler (inductor, with frozen weights) does the work; it needs a C++ compiler. Code is made at the first batch of a
shape, and what the C++ compiler made is kept on disk for later processes. Sums are taken in another order than in the net as it
came, so the results are others in their last bits; in bfloat16 they keep two to three digits."""

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from models.backbones.backbone import Backbone, Preprocessing

Arithmetic = Literal["float32", "bfloat16"]


class CannotCompile(ValueError):
    """The net cannot be compiled here: says why and what to do."""


class CompiledBackbone:
    """A backbone on the CPU whose pass through the net, from bytes to rows, is one piece of compiled code."""

    def __init__(self, backbone: Backbone, arithmetic: Arithmetic, cache: Path):
        leave = "leave 'compiled' out"
        if backbone.preprocessing is not None and backbone.preprocessing.crop is None:
            raise CannotCompile(f"{backbone.name} sees frames of any size, and code is made for one size; {leave}")
        if shutil.which(compiler := os.environ.get("CXX") or "g++") is None:
            needed = f"compiled nets need a C++ compiler and '{compiler}' is not here"
            raise CannotCompile(f"{needed}; install g++ (or name another in CXX), or {leave}")
        # Read whenever code is looked up or stored; a folder that the user chose is kept.
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache))
        self.name, self.net = backbone.name, backbone.net
        self.preprocessing: Preprocessing | None = backbone.preprocessing
        self.clip: int | None = backbone.clip
        self.outputs: Mapping[str, tuple[int, ...]] = backbone.outputs
        self._run = _compiled(backbone, arithmetic)

    def __call__(self, items: Tensor) -> dict[str, Tensor]:
        """As the backbone that it was made from."""
        from torch._dynamo.exc import TorchDynamoException  # seconds to import, for those who compile only
        from torch._inductor import config

        patch: Any = config.patch
        try:
            # Not in inference mode, which the compiler does not know. One process compiles: nearly all the work is in
            # oneDNN's own kernels, and what is left is not worth a pool of helpers.
            with torch.inference_mode(False), torch.no_grad(), patch(freezing=True, compile_threads=1):
                return self._run(items.clone() if items.is_inference() else items)
        except TorchDynamoException as error:
            reason = " ".join(str(error).strip().splitlines()[:2])
            raise CannotCompile(f"{self.name} could not be compiled ({reason}); leave 'compiled' out") from error


def _compiled(backbone: Backbone, arithmetic: Arithmetic) -> Callable[[Tensor], dict[str, Tensor]]:
    def run(items: Tensor) -> dict[str, Tensor]:
        with torch.autocast("cpu", torch.bfloat16, enabled=arithmetic == "bfloat16"):
            return backbone(items)

    return torch.compile(run, dynamic=False, fullgraph=True)
