"""How a run uses the machine. Nothing here is part of any key: it changes how fast a result comes, not which."""

from __future__ import annotations

import os
from typing import Literal

from pydantic import Field

from storage.options import Options


class Runtime(Options):
    """Where and how stages run."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto takes the GPU when there is one"""
    threads: int = Field(0, ge=0)
    """CPU threads for torch; 0 leaves torch's choice. Training is bit-identical only for equal thread counts"""
    decoders: int = Field(default_factory=lambda: min(4, os.cpu_count() or 1), ge=0)
    """decoder processes; 0 decodes in this process"""
    decode_timeout: float = Field(120.0, gt=0)
    """seconds after which a decoder that does not answer is stopped and its video quarantined"""
    retry_quarantined: bool = False
    """try again the videos that extraction could not read before"""

    def torch_device(self) -> str:
        """The device's name for torch; sets torch's thread count on the way."""
        import torch

        if self.threads:
            torch.set_num_threads(self.threads)
        if self.device == "auto":
            return "cuda" if torch.cuda.is_available() else "cpu"
        return self.device
