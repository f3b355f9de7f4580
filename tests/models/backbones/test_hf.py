"""Models of transformers as backbones: features and pictures are those of transformers itself, and a folder brings no code."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf

from models.backbones import hf_folder
from models.backbones.hf import HfBackbone, clip_in, load
from models.backbones.openvino_model import OpenVinoModel, convert
from models.backbones.weights import WeightsUnavailable
from models.backbones.zoo import UnknownBackbone, canonical, module_of
from storage.media.resize import FrameTransform, resize_and_crop
from tests.models.backbones.tiny_transformers import ANIMALS, MODELS, SIDE, save

LOCAL = {"local_files_only": True}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("transformers")
    return {name: save(name, root / name) for name in MODELS}


@cache
def opened(folder: Path) -> HfBackbone:
    return load(f"hf:{folder}", folder / hf_folder.WEIGHTS, 0)


def frames(count: int, height: int = 61, width: int = 75) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, height, width, 3), np.uint8)


def fitted(backbone: HfBackbone, pictures: np.ndarray) -> torch.Tensor:
    """(M, H, W, 3) as the decoder would send it: (1, M, 32, 32, 3)"""
    assert backbone.preprocessing is not None
    how = FrameTransform(**asdict(backbone.preprocessing))
    return torch.tensor(np.stack([resize_and_crop(picture, how) for picture in pictures]))[None]


def expected(folder: Path, name: str, pixels: torch.Tensor) -> dict[str, torch.Tensor]:
    """What transformers' own classes give for pixel values (1, M, 3, H, W)."""
    one = pixels[:, 0]
    match name:
        case "clip" | "siglip":
            found = hf.AutoModel.from_pretrained(folder, **LOCAL).get_image_features(pixel_values=one)
            patches = found.last_hidden_state[:, 1 if name == "clip" else 0 :]
            return {"pooled": found.pooler_output, "grid": patches}
        case "dinov2" | "dinov3":
            tokens = hf.AutoModel.from_pretrained(folder, **LOCAL)(one).last_hidden_state
            return {"pooled": tokens[:, 0], "grid": tokens[:, 1 if name == "dinov2" else 5 :]}
        case "vit" | "resnet":
            net = hf.AutoModelForImageClassification.from_pretrained(folder, **LOCAL)
            found = net.base_model(one)
            tokens, classes = found.last_hidden_state, net(one).logits.softmax(-1)
            if name == "resnet":
                return {"pooled": found.pooler_output.flatten(1), "grid": tokens.flatten(2).mT, "classes": classes}
            return {"pooled": tokens[:, 0], "grid": tokens[:, 1:], "classes": classes}
        case "videomae":
            net = hf.VideoMAEForVideoClassification.from_pretrained(folder, **LOCAL)
            pooled = net.fc_norm(net.videomae(pixels).last_hidden_state.mean(1))
            return {"pooled": pooled, "classes": net(pixels).logits.softmax(-1)}
        case "videomae-body":
            return {"pooled": hf.VideoMAEModel.from_pretrained(folder, **LOCAL)(pixels).last_hidden_state.mean(1)}
        case "vjepa2":
            return {"pooled": hf.VJEPA2Model.from_pretrained(folder, **LOCAL).get_vision_features(pixels).mean(1)}
        case _:
            return {"pooled": hf.XCLIPModel.from_pretrained(folder, **LOCAL).get_video_features(pixels).pooler_output}


@pytest.mark.parametrize("name", list(MODELS))
def test_features_are_those_of_transformers(name: str, folders: dict[str, Path]) -> None:
    backbone = opened(folders[name])
    video = name.startswith(("videomae", "vjepa", "xclip"))
    assert backbone.clip == clip_in(f"hf:{folders[name]}", folders[name]) == (4 if video else None)
    items = fitted(backbone, frames(4 if video else 1))
    with torch.no_grad():
        wanted = expected(folders[name], name, backbone.pixels(items))
    found = backbone(items)
    assert list(found) == list(wanted) == list(backbone.outputs), "the first is the default"
    for output, value in wanted.items():
        assert backbone.outputs[output] == value.shape[1:]
        torch.testing.assert_close(found[output], value, rtol=1e-4, atol=1e-6)
        assert value.std() > 1e-4 or output == "classes"


@pytest.mark.parametrize("name", ["clip", "siglip", "dinov2", "vit", "videomae", "xclip"])
@pytest.mark.parametrize("size", [(61, 75), (45, 80), (90, 51), (240, 320)])
def test_frames_are_fitted_to_the_bit_as_by_the_processor_on_pillow(
    name: str, size: tuple[int, int], folders: dict[str, Path]
) -> None:
    backbone, picture = opened(folders[name]), frames(1, *size)[0]
    processor = hf.AutoImageProcessor.from_pretrained(folders[name], backend="pil", do_normalize=False, do_rescale=False, **LOCAL)
    theirs = np.asarray(next(iter(processor([picture], return_tensors="np").values())))
    ours = fitted(backbone, picture[None])[0, 0].numpy()
    assert np.array_equal(ours, theirs.reshape(-1, 3, SIDE, SIDE)[0].transpose(1, 2, 0))


@pytest.mark.parametrize("name", list(MODELS))
def test_pixels_are_those_of_the_processor_up_to_a_rounding_of_its_resize(name: str, folders: dict[str, Path]) -> None:
    backbone = opened(folders[name])
    for picture in (frames(1, 61, 75)[0], frames(1, 90, 51)[0]):
        ours = fitted(backbone, picture[None])[0, 0].numpy()
        assert backbone.off_by(picture, ours) <= 2
        assert backbone.off_by(picture, np.roll(ours, 1, 1)) > 50, "a crop that is off by one pixel is seen"
    same = frames(1, SIDE, SIDE)[0]
    if name not in ("clip", "dinov2", "vjepa2") and not name.startswith(("videomae", "xclip")):
        assert backbone.off_by(same, same) < 1e-4, "levels, mean and deviation alone"


@pytest.mark.parametrize("name", ["clip", "dinov3", "vit", "videomae", "vjepa2", "xclip"])
def test_openvino_gives_the_same_features(name: str, folders: dict[str, Path], tmp_path: Path) -> None:
    backbone = opened(folders[name])
    items = np.random.default_rng(0).integers(0, 256, (2, backbone.clip or 1, SIDE, SIDE, 3), np.uint8)
    convert(backbone, items.shape, tmp_path / "model.xml")
    found = OpenVinoModel(tmp_path / "model.xml", "float32", 1)(items)
    for output, value in backbone(torch.from_numpy(items)).items():
        np.testing.assert_allclose(found[output], value.numpy(), rtol=1e-4, atol=1e-5)


def test_a_clip_has_the_models_own_number_of_frames(folders: dict[str, Path]) -> None:
    assert [n for n in range(1, 9) if opened(folders["videomae"]).takes(n)] == [4]
    jepa = opened(folders["vjepa2"])
    assert [n for n in range(1, 9) if jepa.takes(n)] == [2, 4, 6, 8]
    assert jepa(fitted(jepa, frames(6)))["pooled"].shape == (1, 24)


def test_classes_have_the_names_of_the_config(folders: dict[str, Path], tmp_path: Path) -> None:
    assert hf_folder.labels(folders["vit"]) == list(ANIMALS.values())
    named = {"0": "a\x1b[31mb\n", "1": "c"}
    assert hf_folder.labels(changed(folders["vit"], tmp_path, "config.json", id2label=named)) == ["a[31mb", "c"]
    for unnamed in ({"0": "a", "2": "b"}, {"0": 1}, ["a"]):
        (tmp_path / "copy" / "config.json").write_text(json.dumps({"id2label": unnamed}))
        assert hf_folder.labels(tmp_path / "copy") is None


def test_names_are_a_repository_or_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert canonical("hf:./a/b") == f"hf:{tmp_path}/a/b" and canonical("hf:a/b") == "hf:a/b"
    assert module_of("hf:openai/clip-vit-base-patch32") == module_of("hf:./x") == module_of("hf:/x") == "hf"
    assert hf_folder.short("hf:openai/clip-vit-base-patch32") == "hf-clip-vit-base-patch32"
    for name in ("hf:", "hf:clip", "hf:a/b/c", "hf:a/../b", "hf:a/..", "hf:-a/b", "hf:a/b\n", "hf:a b/c", "hf:https://a/b"):
        with pytest.raises(UnknownBackbone, match="names no model of transformers"):
            module_of(name)


def changed(folder: Path, tmp_path: Path, file: str, **values: Any) -> Path:
    """A copy of a model whose settings say something else."""
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in folder.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    (copy / file).write_text(json.dumps(json.loads((copy / file).read_bytes()) | values))
    return copy


def test_a_folder_brings_no_code(folders: dict[str, Path], tmp_path: Path) -> None:
    auto = {"AutoModel": "code.Net", "AutoConfig": "code.Config", "AutoImageProcessor": "code.Processor"}
    known = changed(folders["clip"], tmp_path, "config.json", auto_map=auto)
    processor = json.loads((known / "preprocessor_config.json").read_bytes()) | {"auto_map": auto}
    (known / "preprocessor_config.json").write_text(json.dumps(processor))
    (known / "code.py").write_text(f"open({str(tmp_path / 'was-run')!r}, 'w')")
    assert load(f"hf:{known}", known / hf_folder.WEIGHTS, 0).outputs == opened(folders["clip"]).outputs, "its own class is taken"
    config = json.loads((known / "config.json").read_bytes()) | {"model_type": "unheard"}
    (known / "config.json").write_text(json.dumps(config))
    with pytest.raises(WeightsUnavailable, match="take a model that transformers brings"):
        opened(known)
    assert not (tmp_path / "was-run").exists()


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"attn_implementation": "kernels/evil"}, "'attn_implementation' is not what a plain model has"),
        ({"vision_config": {"_attn_implementation": "kernels/evil"}}, "'_attn_implementation'"),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, "'quantization_config'"),
        ({"model_type": "vit_mae"}, "hides patches at random"),
        ({"model_type": "siglip2"}, "siglip2-base-patch16-224"),
        ({"model_type": "bert"}, "get all files"),
        ({"vision_config": {"hidden_size": 32}}, "cannot be opened"),
        ({"projection_dim": 13}, "does not fit its config.json"),
    ],
)
def test_what_is_no_plain_vision_model_is_refused(
    values: dict[str, Any], said: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    with pytest.raises((WeightsUnavailable, hf_folder.BadFolder), match=said):
        opened(changed(folders["clip"], tmp_path, "config.json", **values))


@pytest.mark.parametrize(
    "values",
    [{"resample": 1}, {"do_resize": False}, {"do_center_crop": False}, {"crop_size": {"height": 64, "width": 64}}],
)
def test_a_processor_that_cannot_be_said_in_our_settings_is_refused(
    values: dict[str, Any], folders: dict[str, Path], tmp_path: Path
) -> None:
    with pytest.raises(WeightsUnavailable, match="fits frames in a way that is not known here"):
        opened(changed(folders["clip"], tmp_path, "preprocessor_config.json", **values))


def test_pickled_missing_and_split_weights_are_refused_with_what_to_do(folders: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(hf_folder.BadFolder, match="there is no folder"):
        hf_folder.weights_in(tmp_path / "none")
    folder = changed(folders["vit"], tmp_path, "config.json")
    (folder / hf_folder.WEIGHTS).rename(folder / "pytorch_model.bin")
    with pytest.raises(hf_folder.BadFolder, match=r"holds pytorch_model.bin, and Longtake opens no pickles.*save_pretrained"):
        hf_folder.weights_in(folder)
    (folder / "pytorch_model.bin").rename(folder / "model-00001-of-00002.safetensors")
    with pytest.raises(hf_folder.BadFolder, match=r"holds model-00001-of-00002.safetensors\).*max_shard_size"):
        hf_folder.weights_in(folder)
    (folder / "model-00001-of-00002.safetensors").rename(folder / hf_folder.WEIGHTS)
    (folder / "preprocessor_config.json").unlink()
    with pytest.raises(hf_folder.BadFolder, match=r"lacks config.json or preprocessor_config.json"):
        hf_folder.weights_in(folder)


def test_a_damaged_file_is_told_from_a_whole_one(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = changed(folders["vit"], tmp_path, "config.json")
    (folder / hf_folder.WEIGHTS).write_bytes((folder / hf_folder.WEIGHTS).read_bytes()[:-100])
    with pytest.raises(WeightsUnavailable, match="get all its files again"):
        opened(folder)
    (folder / "config.json").write_text("[" * 100_000)
    with pytest.raises(hf_folder.BadFolder, match="is no JSON"):
        hf_folder.read_settings(folder)


def test_half_precision_checkpoints_are_computed_in_float32(tmp_path: Path) -> None:
    net, processor = MODELS["vit"]()
    net.half().save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    assert {p.dtype for p in opened(tmp_path).net.parameters()} == {torch.float32}


def test_a_pooler_that_the_checkpoint_lacks_is_not_used(tmp_path: Path) -> None:
    net = hf.ViTModel(MODELS["vit"]()[0].config, add_pooling_layer=False)
    net.save_pretrained(tmp_path)
    MODELS["vit"]()[1].save_pretrained(tmp_path)
    backbone = opened(tmp_path)
    items = fitted(backbone, frames(1))
    with torch.no_grad():
        tokens = net.eval()(backbone.pixels(items)[:, 0]).last_hidden_state
    torch.testing.assert_close(backbone(items)["pooled"], tokens[:, 0], rtol=1e-4, atol=1e-6)


def test_without_transformers_the_message_says_what_to_install(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(WeightsUnavailable, match=r"pip install 'longtake\[hf\]'"):
        load("hf:a/clip", folders["clip"] / hf_folder.WEIGHTS, 0)
