"""Backbones as OpenVINO models: traced once for a shape of batch, kept as files, and run without torch.

In float32 the results differ from torch's by rounding, as a GPU's do. A row does not depend on the other rows of its batch or on
its place among them."""

import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from models.backbones.batches import ItemBatch

if TYPE_CHECKING:
    from models.backbones.backbone import Backbone

Arithmetic = Literal["float32", "bfloat16"]
_HINTS: dict[Arithmetic, str] = {"float32": "f32", "bfloat16": "bf16"}
_CACHED = 8  # models in memory at once


class CannotConvert(ValueError):
    """OpenVINO does not know all that a net does: says what."""


def openvino() -> Any:
    """The package, without its telemetry, which would send statistics at import unless told not to."""
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    import openvino

    return openvino


@cache
def knows_bfloat16() -> bool:
    """Whether this processor computes in bfloat16 (AMX or AVX512_BF16), as OpenVINO finds it."""
    return "BF16" in openvino().Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


def convert(backbone: "Backbone", shape: tuple[int, ...], file: Path) -> None:
    """Write a backbone, from bytes to rows, as a model for batches of one shape: `file`, an .xml, and a .bin beside it."""
    import torch

    ov = openvino()
    number, type_ = (torch.float32, ov.Type.f32) if backbone.preprocessing is None else (torch.uint8, ov.Type.u8)
    example = (torch.zeros(shape, dtype=number),)
    try:
        with torch.no_grad(), warnings.catch_warnings(action="ignore"):
            traced = torch.jit.trace(_whole(backbone), example, strict=False, check_trace=False)
            model = ov.convert_model(traced, example_input=example, input=[(list(shape), type_)])
    except Exception as error:  # of many kinds, torch's and OpenVINO's
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise CannotConvert(f"{backbone.name} cannot become an OpenVINO model ({lines[-1] if lines else error!r})") from error
    for output, name in zip(model.outputs, backbone.outputs, strict=True):
        output.get_tensor().set_names({name})
    ov.save_model(model, file, compress_to_fp16=False)


def _whole(backbone: "Backbone") -> Any:
    """A backbone's call as a module, its outputs in their order."""
    import torch

    class Whole(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = backbone.net

        def forward(self, items: torch.Tensor) -> tuple[torch.Tensor, ...]:
            found = backbone(items)
            return tuple(found[name] for name in backbone.outputs)

    return Whole()


class OpenVinoModel:
    """A converted model on this CPU, on so many threads."""

    def __init__(self, file: Path, arithmetic: Arithmetic, threads: int):
        options: dict[str, Any] = {"INFERENCE_PRECISION_HINT": _HINTS[arithmetic], "NUM_STREAMS": 1}
        # Pinned threads would wait for their own core while another is idle.
        options |= {"INFERENCE_NUM_THREADS": threads, "ENABLE_CPU_PINNING": False}
        self._request = openvino().Core().compile_model(file, "CPU", options).create_infer_request()
        self._names = [output.get_any_name() for output in self._request.model_outputs]

    def __call__(self, items: np.ndarray) -> Mapping[str, np.ndarray]:
        """items (N, ...) -> output -> (N, *shape) float32, valid until the next call."""
        self._request.infer({0: np.ascontiguousarray(items)}, share_inputs=True)
        return {name: self._request.get_tensor(name).data for name in self._names}


@dataclass(frozen=True)
class ModelBatch:
    """A batch and the model to run it through."""

    file: Path
    arithmetic: Arithmetic
    threads: int
    batch: ItemBatch


def run_model(job: ModelBatch) -> dict[str, np.ndarray]:
    """Run a batch; the model stays open for the next one."""
    return job.batch.select(_opened(job.file, job.arithmetic, job.threads)(job.batch.items))


@lru_cache(_CACHED)
def _opened(file: Path, arithmetic: Arithmetic, threads: int) -> OpenVinoModel:
    return OpenVinoModel(file, arithmetic, threads)
