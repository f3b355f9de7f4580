"""Where a run computes: GPUs that are not there are refused in words, and defaults fit the device."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from storage.errors import UsageError
from tasks.framework.runtime import Runtime


@pytest.fixture
def two_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=24 << 30))


def test_cuda_without_a_card_is_refused_in_words() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a card")
    assert Runtime().torch_device() == "cpu" and Runtime().gpu_count() == 0
    with pytest.raises(UsageError, match=r"runtime.device is cuda, but torch finds no GPU.*set it to auto"):
        Runtime(device="cuda").torch_device()


def test_more_processes_or_gpus_than_cards_are_refused(two_cards: None) -> None:
    assert Runtime(nproc=2).torch_device() == "cuda" and Runtime().gpu_count() == 2 and Runtime(gpus=1).gpu_count() == 1
    with pytest.raises(UsageError, match=r"runtime.nproc is 3.*torch finds 2"):
        Runtime(nproc=3).torch_device()
    with pytest.raises(UsageError, match=r"runtime.gpus is 3 and torch finds 2"):
        Runtime(gpus=3).gpu_count()
    assert Runtime(device="cpu", nproc=3).torch_device() == "cpu"


def test_a_batch_fits_the_device(two_cards: None) -> None:
    assert Runtime().batch_on("cpu") == 16 and Runtime().batch_on("cuda") == 8 * 24
    assert Runtime(batch=5).batch_on("cuda") == Runtime(batch=5).batch_on("cpu") == 5


def test_float32_means_float32_unless_tf32_is_named(two_cards: None) -> None:
    kept = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    try:
        Runtime(training_precision="tf32").torch_device()
        assert torch.get_float32_matmul_precision() == "high" and torch.backends.cudnn.allow_tf32
        Runtime(training_precision="float32").torch_device()
        assert torch.get_float32_matmul_precision() == "highest" and not torch.backends.cudnn.allow_tf32
    finally:
        torch.set_float32_matmul_precision(kept[0])
        torch.backends.cudnn.allow_tf32 = kept[1]


def test_deterministic_algorithms_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")  # so that it is put back afterwards
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    try:
        Runtime(deterministic=True, device="cpu").torch_device()
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
