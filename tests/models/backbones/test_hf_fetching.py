"""Fetching a model of transformers from a hub: all files of one commit, its settings first, nothing twice."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from huggingface_hub import constants

from models.backbones import hf_folder, hub
from models.backbones.hf import clip_in, load
from models.backbones.weights import WeightsUnavailable
from tests.models.backbones.tiny_transformers import save

COMMIT = "0123456789abcdef0123456789abcdef01234567"
NET = "hf:somebody/tiny-clip"


class _Hub(ThreadingHTTPServer):
    """Serves the files of a folder as the repository somebody/tiny-clip, and notes what it was asked for."""

    def __init__(self, folder: Path):
        super().__init__(("127.0.0.1", 0), _Answer)
        self.folder, self.asked = folder, list[str]()


class _Answer(BaseHTTPRequestHandler):
    server: _Hub

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        self._answer(with_body=True)

    def _answer(self, with_body: bool) -> None:
        revisions = ("/somebody/tiny-clip/resolve/main/", f"/somebody/tiny-clip/resolve/{COMMIT}/")
        file = self.server.folder / self.path.rpartition("/")[2]
        here = self.path == "/" or (self.path.startswith(revisions) and file.is_file())
        body = file.read_bytes() if here and file.is_file() else b""
        self.send_response(200 if here else 404)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", f'"{hashlib.sha256(body).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        if not here:
            self.send_header("X-Error-Code", "EntryNotFound")
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[_Hub]:
    started = _Hub(save("clip", tmp_path / "model"))
    Thread(target=started.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{started.server_address[1]}"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", address)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", address + "/{repo_id}/resolve/{revision}/{filename}")
    yield started
    started.shutdown()
    started.server_close()


def test_settings_come_without_the_weights_and_then_the_weights_of_the_same_commit(server: _Hub) -> None:
    assert hub.cached(NET) is None
    folder = hub.fetch_folder(NET, weights=False)
    assert clip_in(NET, folder) is None and folder.name == COMMIT and not (folder / hf_folder.WEIGHTS).exists()
    weights = hub.fetch(NET)
    assert weights == folder / hf_folder.WEIGHTS == hub.cached(NET)
    files = {path.rpartition("/")[2] for path in server.asked if path.startswith("/somebody/")}
    assert files == {"config.json", "preprocessor_config.json", "model.safetensors"}
    assert load(NET, weights, 0).outputs["pooled"] == (12,)
    asked = len(server.asked)
    assert hub.fetch(NET) == weights and len(server.asked) == asked, "what is in the cache is not asked for again"


def test_a_repository_with_pickled_weights_alone_is_refused(server: _Hub) -> None:
    (server.folder / hf_folder.WEIGHTS).rename(server.folder / "pytorch_model.bin")
    with pytest.raises(hf_folder.BadFolder, match=r"has no model.safetensors .*save_pretrained"):
        hub.fetch(NET)
    assert not any(path.endswith(".bin") for path in server.asked)


def test_a_repository_that_is_not_there_is_named(server: _Hub) -> None:
    with pytest.raises(WeightsUnavailable, match=r"weights of 'hf:nobody/none' are not here .*--net hf:nobody/none"):
        hub.fetch("hf:nobody/none")
