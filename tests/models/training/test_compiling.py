"""Compiled parts of a captioner: the same losses but for rounding, the same names of weights."""

from __future__ import annotations

import shutil

import pytest
import torch

from models.captioner import Captioner
from models.training.compiling import compile_modules
from models.training.loop import fit
from tests.models.toy_captions import toy_captioner
from tests.models.training.toy_training import OBJECTIVE, ToyBatches, options


def losses(captioner: Captioner) -> list[float]:
    torch.manual_seed(5)
    return [progress.losses["total"] for progress in fit(captioner, OBJECTIVE, ToyBatches(), options())]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="compiling needs g++")
def test_a_compiled_training_is_the_same_but_for_rounding() -> None:
    plain, compiled = toy_captioner(), toy_captioner()
    names = list(compiled.state_dict())
    assert compile_modules(compiled) == 2
    assert losses(compiled) == pytest.approx(losses(plain), rel=1e-4)
    assert list(compiled.state_dict()) == names
