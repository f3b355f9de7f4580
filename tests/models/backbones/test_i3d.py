"""I3D: TensorFlow's padding, weights from a pickle that can hold nothing but arrays, classes that have names."""

from __future__ import annotations

import io
import os
import pickle
import pickletools
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from models.backbones import i3d
from models.backbones.backbone import Backbone
from models.backbones.classes import class_names
from models.backbones.i3d import ConvUnit, load, pad_same
from models.backbones.i3d_weights import state_of
from models.backbones.numpy_pickle import read_arrays
from models.backbones.weights import WeightsUnavailable


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    return load("i3d", None, seed=0)


def clips(count: int, frames: int) -> Tensor:
    """(count, frames, 64, 64, 3) uint8; the net takes any size, and small ones are quick."""
    coarse = torch.rand(count, 3, 4, 5, 6, generator=torch.Generator().manual_seed(frames)) * 255
    return nn.functional.interpolate(coarse, (frames, 64, 64), mode="trilinear").byte().permute(0, 2, 3, 4, 1)


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "before", "after"),
    [(224, 7, 2, 2, 3), (223, 7, 2, 3, 3), (112, 3, 2, 0, 1), (8, 2, 2, 0, 0), (7, 2, 2, 0, 1), (5, 3, 1, 1, 1), (9, 1, 1, 0, 0)],
)
def test_padding_is_that_of_tensorflow(size: int, kernel: int, stride: int, before: int, after: int) -> None:
    row = torch.arange(1.0, size + 1).view(1, 1, 1, 1, size)
    padded = pad_same(row, (1, 1, kernel), (1, 1, stride)).flatten().tolist()
    assert padded == [0.0] * before + row.flatten().tolist() + [0.0] * after


def test_the_mean_of_the_logits_over_time_is_that_of_the_pooled_features(backbone: Backbone) -> None:
    """As published: windows of two time steps, logits of each, their mean."""
    levels = torch.rand(1, 3, 24, 64, 64) * 2 - 1
    seen: list[Tensor] = []
    hook = backbone.net.get_submodule("Mixed_5c").register_forward_hook(lambda _, __, out: seen.append(out))
    with torch.no_grad():
        pooled, logits = backbone.net(levels)
        hook.remove()
        windows = (seen[0][:, :, :-1] + seen[0][:, :, 1:]).mean((3, 4)) / 2
        each = backbone.net.get_submodule("Logits")(windows.transpose(1, 2))
    assert seen[0].shape == (1, 1024, 3, 2, 2) and torch.allclose(logits, each.mean(1), atol=1e-5)
    assert torch.allclose(pooled, windows.mean(2), atol=1e-6)


@pytest.mark.parametrize("frames", [8, 16, 33])
def test_clips_of_any_length_give_a_feature_each_and_of_each_alone(backbone: Backbone, frames: int) -> None:
    items = clips(2, frames)
    found, other = backbone(items), backbone(items.flip(0))
    assert {name: tuple(value.shape[1:]) for name, value in found.items()} == dict(backbone.outputs)
    assert torch.equal(found["pooled"], other["pooled"].flip(0)) and not torch.equal(*found["pooled"])
    assert torch.allclose(found["classes"].sum(1), torch.ones(2))


def published(net: nn.Module) -> dict[str, dict]:
    """The weights of a net as the published pickle has them: dicts of arrays, kernels as (time, height, width, in, out)."""
    units = {"branch0": "Branch_0/Conv3d_0a_1x1", "branch3": "Branch_3/Conv3d_0b_1x1"}
    units |= {f"branch{b}.{n}": f"Branch_{b}/Conv3d_0{'ab'[n]}_{'13'[n]}x{'13'[n]}" for b in (1, 2) for n in (0, 1)}
    found: dict[str, dict] = {"params": {}, "batch_stats": {}}
    for name, unit in net.named_modules():
        if isinstance(unit, ConvUnit):
            outer, _, inner = name.partition(".")
            kernel = unit.conv.weight.permute(2, 3, 4, 1, 0).numpy()
            stats = {"mean": unit.bn.running_mean, "var": unit.bn.running_var}
            places = [found[part].setdefault(outer, {}) if inner else found[part] for part in ("params", "batch_stats")]
            key = units[inner] if inner else outer
            places[0][key] = {"Conv_0": {"kernel": kernel}, "BatchNorm_0": {"bias": unit.bn.bias.numpy()}}
            places[1][key] = {"BatchNorm_0": {k: v.view(1, 1, 1, 1, -1).numpy() for k, v in stats.items() if v is not None}}
    head = net.get_submodule("Logits")
    assert isinstance(head, nn.Linear)
    last = {"kernel": head.weight.T[None, None, None].numpy(), "bias": head.bias.numpy()}
    found["params"]["Logits/Conv3d_0c_1x1"] = {"Conv_0": last}
    return found


def test_the_published_arrays_become_the_net_they_came_from(tmp_path: Path) -> None:
    net = i3d.InceptionI3d().requires_grad_(False)
    state = net.state_dict()
    for name, value in state.items():
        if name.endswith((".bias", "_mean", "_var")):
            value.uniform_(0.5, 1.5)  # in place: batch norms as if they had learnt
    file = tmp_path / "weights.ckpt"
    file.write_bytes(pickle.dumps(published(net), protocol=4))
    assert b"numpy" in file.read_bytes()[:500]
    converted = state_of(file)
    assert set(converted) == {name for name in state if not name.endswith("num_batches_tracked")}
    assert all(torch.equal(value, state[name]) for name, value in converted.items())


def test_a_pickle_without_an_array_says_which(tmp_path: Path) -> None:
    file = tmp_path / "weights.ckpt"
    file.write_bytes(pickle.dumps({"params": {"Conv3d_1a_7x7": {"Conv_0": {"kernel": np.zeros(3, np.float32)}}}}))
    with pytest.raises(WeightsUnavailable, match="no array 'params/Conv3d_1a_7x7/Conv_0/kernel'"):
        state_of(file)


class Calls:
    """Pickles as a call."""

    def __init__(self, function: object, *arguments: object):
        self.call = function, arguments

    def __reduce__(self) -> tuple:
        return self.call


CRAFTED = {
    "os.mkdir": Calls(os.mkdir, "was-here"),
    "eval": Calls(eval, "1 + 1"),
    "another function of numpy": Calls(np.load, "file.npy", None, True),
    "a class": Path("somewhere"),
    "an array of objects": np.array([{}, "a"], dtype=object),
    "a set": {"params": {1, 2}},
    "text in place of an array": {"params": "kernel"},
}


@pytest.mark.parametrize("crafted", list(CRAFTED))
def test_a_pickle_that_holds_more_than_arrays_is_refused_and_nothing_runs(
    crafted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for wrapped in (CRAFTED[crafted], {"params": {"kernel": CRAFTED[crafted]}}):
        file = tmp_path / "weights.ckpt"
        file.write_bytes(pickle.dumps(wrapped))
        with pytest.raises(WeightsUnavailable, match=r"holds no plain arrays for 'i3d'.*nothing in it was run"):
            read_arrays(file, "i3d")
    assert not (tmp_path / "was-here").exists()


def test_a_pickle_that_is_cut_anywhere_is_refused(tmp_path: Path) -> None:
    whole = pickle.dumps({"a": np.arange(6.0).reshape(2, 3), "b": {"c": np.asfortranarray(np.eye(3, dtype=np.float32))}})
    file = tmp_path / "weights.ckpt"
    file.write_bytes(whole)
    found = read_arrays(file, "i3d")
    assert found["a"].tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]] and np.array_equal(found["b/c"], np.eye(3))
    for end in range(0, len(whole), 7):
        file.write_bytes(whole[:end])
        with pytest.raises(WeightsUnavailable):
            read_arrays(file, "i3d")


def test_an_array_cannot_claim_more_values_than_it_has(tmp_path: Path) -> None:
    whole = pickle.dumps({"a": np.arange(6, dtype=np.float32)}, protocol=4)
    ops = [(op.name, arg) for op, arg, _ in pickletools.genops(io.BytesIO(whole))]
    assert ("BININT1", 6) in ops
    file = tmp_path / "weights.ckpt"
    file.write_bytes(whole.replace(b"K\x06\x85", b"K\x60\x85"))
    with pytest.raises(WeightsUnavailable, match="holds no plain arrays"):
        read_arrays(file, "i3d")


def test_classes_have_names_in_the_published_order() -> None:
    kinetics = class_names("i3d", i3d.CLASSES)
    assert kinetics is not None and kinetics == class_names("tv:s3d", 400)
    assert [kinetics[n] for n in (0, 5, 227, 378, 399)] == ["abseiling", "archery", "playing cricket", "walking the dog", "zumba"]
    imagenet = class_names("tf_efficientnet_lite2", 1000)
    assert imagenet is not None and imagenet[815] == "spider web"
    assert class_names("resnet101", 12) is None and class_names("vggish", 400) is None
