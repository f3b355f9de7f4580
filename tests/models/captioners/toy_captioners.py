"""Small GL-RG and RecNet captioners with weights large enough that captions differ."""

from __future__ import annotations

from typing import Any

import torch

from models.captioner import Captioner
from models.captioners.glrg import GlRgOptions, build_glrg
from models.captioners.recnet.captioner import RecNetOptions, build_recnet
from tests.models.captioners.captioner_checks import opinionated
from tests.models.toy_captions import SIZES, VOCABULARY


def toy_glrg(seed: int = 0, **changes: Any) -> Captioner:
    values = {"features": ("rgb", "motion"), "projection": 6, "embedding": 5, "hidden": 8, "dropout": 0.0} | changes
    torch.manual_seed(seed)
    return opinionated(build_glrg(GlRgOptions(**values), SIZES, VOCABULARY))


def recnet_options(base: str = "sa_lstm", reconstructor: str = "local", **changes: Any) -> RecNetOptions:
    values = {"kind": base, "features": ("rgb", "motion"), "embedding": 5, "hidden": 8, "dropout": 0.0} | changes
    return RecNetOptions.model_validate({"base": values, "reconstructor": reconstructor, "attention": 7})


def toy_recnet(base: str = "sa_lstm", reconstructor: str = "local", **changes: Any) -> Captioner:
    torch.manual_seed(0)
    return opinionated(build_recnet(recnet_options(base, reconstructor, **changes), SIZES, VOCABULARY))
