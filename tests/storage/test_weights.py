"""The folder of weights: hashes follow the content, nothing is overwritten, two processes may write, names stay names."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from storage.errors import BadInput, StorageError
from storage.weights import KnownWeights, WeightsFolder, bare_name, default_folder


@pytest.fixture
def folder(tmp_path: Path) -> WeightsFolder:
    return WeightsFolder(tmp_path / "weights")


def made(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_a_registered_file_is_found_with_its_hash_and_stays_where_it_is(folder: WeightsFolder, tmp_path: Path) -> None:
    file = made(tmp_path / "net.pth", b"weights")
    known = folder.register("resnet101", file, "https://example.org/net.pth")
    assert known == WeightsFolder(folder.path).find("resnet101")
    assert (known.path, known.sha256, known.size, known.how) == (file, sha(b"weights"), 7, "downloaded")
    assert known.source == "https://example.org/net.pth" and folder.find("resnet152") is None


def test_changed_content_gives_the_new_hash_and_a_mere_touch_the_old_one(folder: WeightsFolder, tmp_path: Path) -> None:
    file = made(tmp_path / "net.pth", b"old")
    before = folder.register("net", file, "")
    os.utime(file, ns=(before.mtime_ns + 5, before.mtime_ns + 5))
    touched = folder.find("net")
    assert touched is not None and touched.sha256 == before.sha256 and touched.mtime_ns == before.mtime_ns + 5
    made(file, b"new!")
    changed = folder.find("net")
    assert changed is not None and changed.sha256 == sha(b"new!") and folder.registered()["net"] == changed
    file.unlink()
    assert folder.find("net") is None and folder.rehashed("net") is None and "net" in folder.registered()


def test_a_file_that_looks_untouched_is_not_read_again(folder: WeightsFolder, tmp_path: Path) -> None:
    file = made(tmp_path / "net.pth", b"aaa")
    known = folder.register("net", file, "")
    made(file, b"bbb")
    os.utime(file, ns=(known.mtime_ns, known.mtime_ns))
    assert folder.find("net") == known
    again = folder.rehashed("net")
    assert again is not None and again.sha256 == sha(b"bbb") and folder.registered()["net"].sha256 == sha(b"aaa")


def test_imports_are_copies_named_by_hash_and_none_overwrites_another(folder: WeightsFolder, tmp_path: Path) -> None:
    file = made(tmp_path / "net.pth", b"one")
    first = folder.import_file("net", file)
    made(file, b"two")
    second = folder.import_file("net", file)
    assert folder.find("net") == second and second.how == "imported" and second.source == "imported from net.pth"
    assert first.path.read_bytes() == b"one" and second.path.read_bytes() == b"two"
    assert first.path == folder.path / "files" / f"{sha(b'one')}.pth"
    again = folder.import_file("other", made(tmp_path / "copy.SAFETENSORS", b"two"))
    assert again.path.name == f"{sha(b'two')}.safetensors" and len(list((folder.path / "files").iterdir())) == 3
    first.path.write_bytes(b"spoilt")
    assert folder.import_file("net", made(file, b"one")).path.read_bytes() == b"one"


def test_a_net_is_one_net_however_it_is_called(folder: WeightsFolder, tmp_path: Path) -> None:
    known = folder.register("timm:resnet101", made(tmp_path / "net.pth", b"x"), "")
    assert folder.find("resnet101") == known and known.net == "timm:resnet101"
    sized = folder.register("fasterrcnn_resnet50_fpn_v2@320", tmp_path / "net.pth", "")
    assert sized.net == "fasterrcnn_resnet50_fpn_v2" and folder.find("fasterrcnn_resnet50_fpn_v2") == sized
    assert bare_name("timm:vit_base_patch16_clip_224.openai") == "vit_base_patch16_clip_224.openai"


@pytest.mark.parametrize("name", ["", "../net", "/etc/passwd", "a/b", "..", ".net", "net\n", "a b", "x" * 300, "timm:", "é"])
def test_names_that_could_mean_something_else_are_refused(folder: WeightsFolder, tmp_path: Path, name: str) -> None:
    file = made(tmp_path / "net.pth", b"x")
    for act in (lambda: folder.register(name, file, ""), lambda: folder.import_file(name, file), lambda: folder.find(name)):
        with pytest.raises(BadInput, match="cannot be the name of a net"):
            act()
    assert not folder.path.exists()


def test_files_that_are_not_there_are_refused(folder: WeightsFolder, tmp_path: Path) -> None:
    for act in (folder.import_file, lambda net, file: folder.register(net, file, "")):
        with pytest.raises(BadInput, match=r"no weights file at .*nowhere\.pth"):
            act("net", tmp_path / "nowhere.pth")
    assert folder.find("net") is None and not folder.path.exists()


def test_a_damaged_index_is_explained(folder: WeightsFolder, tmp_path: Path) -> None:
    folder.import_file("net", made(tmp_path / "net.pth", b"x"))
    for text in ("{", "[]", '{"nets": {"net": {}}}', '{"nets": 3}'):
        folder.index.write_text(text)
        with pytest.raises(StorageError, match=r"index\.json is damaged .* remove that file"):
            folder.find("net")


def test_a_file_name_that_is_not_unicode_can_be_imported(folder: WeightsFolder, tmp_path: Path) -> None:
    file = Path(os.fsdecode(os.fsencode(tmp_path) + b"/net-\xff.pth"))
    known = folder.import_file("net", made(file, b"x"))
    assert json.loads(folder.index.read_text())["nets"]["net"]["source"] == known.source == "imported from net-\ufffd.pth"


_WRITER = """
import sys
from pathlib import Path
from storage.weights import WeightsFolder
folder, file, who = WeightsFolder(Path(sys.argv[1])), Path(sys.argv[2]), sys.argv[3]
for n in range(25):
    folder.import_file(f"{who}{n}", file)
"""


def test_two_processes_lose_nothing_of_each_other(folder: WeightsFolder, tmp_path: Path) -> None:
    file = made(tmp_path / "net.pth", b"x" * 1000)
    command = [sys.executable, "-c", _WRITER, str(folder.path), str(file)]
    writers = [subprocess.Popen([*command, who]) for who in ("left", "right")]
    assert [writer.wait(timeout=60) for writer in writers] == [0, 0]
    known = folder.registered()
    assert len(known) == 50 and all(isinstance(row, KnownWeights) and row.sha256 == sha(b"x" * 1000) for row in known.values())
    assert sorted(path.name for path in folder.path.iterdir()) == ["files", "index.json", "index.lock"]
    assert len(list((folder.path / "files").iterdir())) == 1


def test_where_the_folder_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LONGTAKE_WEIGHTS", str(tmp_path / "mine"))
    assert default_folder() == tmp_path / "mine" == WeightsFolder().path
    monkeypatch.delenv("LONGTAKE_WEIGHTS")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert default_folder() == tmp_path / "cache" / "longtake" / "weights"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_folder() == tmp_path / ".cache" / "longtake" / "weights"
