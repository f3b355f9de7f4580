"""Weights of backbones: names that are known, files that are wanted, fetching them, and saying so where that fails."""

from __future__ import annotations

import hashlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import timm
import torch
from huggingface_hub import constants
from torch import nn

from models.backbones import hub
from models.backbones.motion import NAMES
from models.backbones.weights import WeightsUnavailable, digest, fill, read_state, seeded
from models.backbones.zoo import BACKBONES, WEIGHTLESS, UnknownBackbone, canonical, module_of, open_backbone

DATA = b"what a published file holds"
SHA = hashlib.sha256(DATA).hexdigest()


class _Shelf(BaseHTTPRequestHandler):
    """Answers like Hugging Face's hub and like a plain server of files: it has .pth files and pytorch_model.bin."""

    def do_HEAD(self) -> None:
        self._answer(b"")

    def do_GET(self) -> None:
        self._answer(DATA)

    def _answer(self, body: bytes) -> None:
        here = self.path == "/" or self.path.endswith((".pth", "pytorch_model.bin"))
        self.send_response(200 if here else 404)
        self.send_header("Content-Length", str(len(DATA) if here else 0))
        self.send_header("ETag", f'"{SHA}"')
        self.send_header("X-Repo-Commit", "0123456789abcdef0123456789abcdef01234567")
        if not here:
            self.send_header("X-Error-Code", "EntryNotFound")
        self.end_headers()
        self.wfile.write(body if here else b"")

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Empty caches of both libraries, and nobody at home at the hub's address."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        closed = f"http://127.0.0.1:{taken.getsockname()[1]}"
    _point_to(closed, monkeypatch)
    return tmp_path


@pytest.fixture
def shelf(caches: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A server at the hub's address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Shelf)
    Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_address[1]}"
    _point_to(address, monkeypatch)
    yield address
    server.shutdown()
    server.server_close()


def _point_to(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", address)
    template = address + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(hub, "_VGGISH", f"{address}/vggish-{SHA[:8]}.pth")


def test_the_table_needs_no_torch_and_lists_modules_that_load() -> None:
    code = "import sys; from models.backbones.zoo import module_of; module_of('resnet101'); print('torch' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout == "False\n"
    folder = Path(hub.__file__).parent
    assert all((folder / f"{module}.py").is_file() for module in BACKBONES.values())


def test_names_with_and_without_a_prefix() -> None:
    assert canonical("timm:resnet101") == "resnet101" and canonical("tv:r3d_18") == "r3d_18"
    assert canonical("timm:r3d_18") == "timm:r3d_18" and canonical("tv:s3d") == "tv:s3d"
    assert module_of("timm:resnet50.a1_in1k") == module_of("resnet152") == "image" and module_of("tv:s3d") == "motion"
    assert module_of("fasterrcnn_resnet50_fpn_v2@320") == "region"
    assert not set(NAMES) & set(timm.list_models())  # so a bare name tells the weights of one net alone


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("resnet50", "similar: timm:resnet50,"),
        ("resnet-101", "similar: resnet101,"),
        ("timm:resnet50.nonsense", "similar: timm:resnet50"),
        ("tv:r3d_81", "similar: r3d_18"),
        ("tv:resnet50", "similar: timm:resnet50"),
        ("r3d_18@64", "similar: r3d_18"),
        ("hf-hub:timm/resnet50", "there is no backbone"),
        ("", "there is no backbone ''; known: inception_v4"),
    ],
)
def test_an_unknown_name_lists_the_known_and_similar_ones(name: str, said: str) -> None:
    with pytest.raises(UnknownBackbone) as caught:
        open_backbone(name, None, 0)
    assert said in str(caught.value) and ", vggish, log_mel, timm:<any net of timm>" in str(caught.value)


def test_every_named_net_says_which_file_it_wants() -> None:
    wanted = {name: hub.wanted_file(name) for name in BACKBONES}
    assert all(w.net == name and w.source and bool(w.file) != (name in WEIGHTLESS) for name, w in wanted.items())
    assert wanted["inception_v4"].repo == "timm/inception_v4.tf_in1k" and wanted["inception_v4"].licence == "apache-2.0"
    assert wanted["vggish"].file == "vggish-10086976.pth" and wanted["vggish"].sha256 == "10086976"
    assert wanted["r3d_18"].source == "https://download.pytorch.org/models/r3d_18-b3b3357e.pth"
    assert wanted["fasterrcnn_resnet50_fpn_v2"] == hub.wanted_file("fasterrcnn_resnet50_fpn_v2@320")
    assert wanted["resnext101_3d"].file == "resnext-101-kinetics.pth" and not wanted["resnext101_3d"].url
    assert hub.wanted_file("tv:swin3d_b").sha256 == "24f7c7c6"
    assert hub.wanted_file("timm:vit_huge_patch14_gap_224").sha256 == ""  # '300e' in its name is no hash


def test_names_of_files_that_tell_the_net() -> None:
    files = hub.published_files()
    assert files["resnet101_a1h-36d3f2aa.pth"].net == "resnet101" and files["s3d-d76dad2f.pth"].net == "tv:s3d"
    assert files["r3d_18-b3b3357e.pth"].sha256 == "b3b3357e" and files["resnext-101-kinetics.pth"].net == "resnext101_3d"
    assert "model.safetensors" not in files


@pytest.mark.parametrize(
    ("net", "said"),
    [
        ("resnet101", ["file model.safetensors", "huggingface.co/timm/resnet101.a1h_in1k", "sha256 is not known"]),
        ("timm:test_resnet", ["huggingface.co/timm/test_resnet.r160_in1k"]),
        ("vggish", [f"file vggish-{SHA[:8]}.pth", f"sha256 begins with {SHA[:8]}"]),
        ("resnext101_3d", ["file resnext-101-kinetics.pth", "3D-ResNets-PyTorch", "no address that a program could use"]),
    ],
)
def test_out_of_reach_is_said_at_once_with_the_file_and_the_remedy(caches: Path, net: str, said: list[str]) -> None:
    begun = time.monotonic()
    with pytest.raises(WeightsUnavailable) as caught:
        hub.fetch(net)
    assert time.monotonic() - begun < 5
    for words in (*said, f"'longtake weights import FILE --net {net}'", "'weights: random'"):
        assert words in str(caught.value)
    assert socket.getdefaulttimeout() is None


def test_offline_by_choice_asks_nobody(shelf: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(WeightsUnavailable, match="HF_HUB_OFFLINE is set"):
        hub.fetch("resnet101")


def test_a_file_by_address_lands_in_torchs_cache_if_its_hash_is_right(
    shelf: str, caches: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert hub.cached("vggish") is None
    path = hub.fetch("vggish")
    assert path == caches / "torch" / "hub" / "checkpoints" / f"vggish-{SHA[:8]}.pth" and path.read_bytes() == DATA
    assert hub.cached("vggish") == path
    monkeypatch.setattr(hub, "_VGGISH", f"{shelf}/vggish-00000000.pth")
    with pytest.raises(WeightsUnavailable, match="invalid hash value"):
        hub.fetch("vggish")
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    monkeypatch.setattr(hub, "_VGGISH", f"{shelf}/vggish-{SHA[:8]}.tar")
    with pytest.raises(WeightsUnavailable, match="Not Found"):
        hub.fetch("vggish")


def test_a_file_of_the_hub_lands_in_the_hubs_cache_and_is_not_asked_for_again(
    shelf: str, caches: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = hub.fetch("timm:test_resnet")  # the shelf has no safetensors, as some repositories
    assert path.read_bytes() == DATA and path.name == "pytorch_model.bin" and caches / "hub" in path.parents
    _point_to("http://127.0.0.1:9", monkeypatch)
    assert hub.cached("timm:test_resnet") == path == hub.fetch("timm:test_resnet")


class _Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(2, 3)
        self.norm = nn.BatchNorm1d(3)


def test_counters_of_training_steps_may_be_missing_and_nothing_else(tmp_path: Path) -> None:
    torch.manual_seed(1)
    state = _Pair().state_dict()
    without = {key: value for key, value in state.items() if key != "norm.num_batches_tracked"}
    torch.save({"state_dict": without, "epoch": 4}, tmp_path / "net.pth")
    net = seeded(_Pair, 0)
    fill(net, read_state(tmp_path / "net.pth", "pair"), "pair", tmp_path / "net.pth")
    assert all(torch.equal(net.state_dict()[key], value) for key, value in without.items())
    del without["norm.running_mean"]
    with pytest.raises(WeightsUnavailable, match=r"1 of 6 weights are missing or of another shape, such as norm.running"):
        fill(net, without, "pair", tmp_path / "net.pth")


def test_the_digest_tells_weights_apart() -> None:
    one, same, other = seeded(_Pair, 1), seeded(_Pair, 1), seeded(_Pair, 2)
    assert digest(one) == digest(same) != digest(other)
    same.norm.weight.data += 1
    assert digest(one) != digest(same)
