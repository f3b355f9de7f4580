"""The folder of weights on this machine: which file holds which net's weights, and the hash of its content.

index.json    net -> file, sha256, size, mtime, source; replaced whole, under a lock, so that two processes may write
files/        imported files, named by their hash: nothing is ever overwritten by something else"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from storage.errors import BadInput, StorageError, wrap_os_errors
from storage.files.atomic import replacing, write_json
from storage.files.locks import file_lock

_NET = re.compile(r"([a-z]+:)?[A-Za-z0-9][A-Za-z0-9_.+-]{0,199}(@[0-9]+(x[0-9]+)?)?")

How = Literal["imported", "downloaded"]


@dataclass(frozen=True)
class KnownWeights:
    """The weights of one net, as they were when their hash was taken."""

    net: str
    path: Path
    sha256: str
    size: int
    mtime_ns: int
    source: str
    """where they came from, in words or as an address"""
    how: How


def default_folder() -> Path:
    """$LONGTAKE_WEIGHTS, else longtake/weights in the user's cache folder."""
    chosen = os.environ.get("LONGTAKE_WEIGHTS")
    return Path(chosen).expanduser().absolute() if chosen else cache_folder() / "weights"


def cache_folder() -> Path:
    """longtake in the user's cache folder."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (cache if cache.is_absolute() else Path.home() / ".cache") / "longtake"


class WeightsFolder:
    """The weights known on this machine. Reading does not create the folder."""

    def __init__(self, path: Path | None = None):
        self.path = (path or default_folder()).expanduser().absolute()

    @property
    def index(self) -> Path:
        return self.path / "index.json"

    def registered(self) -> dict[str, KnownWeights]:
        """All that were ever registered, by the net's bare name, whether their files are still there or not."""
        try:
            rows = json.loads(self.index.read_bytes())["nets"]
            return {bare: KnownWeights(**{**row, "path": Path(row["path"])}) for bare, row in rows.items()}
        except FileNotFoundError:
            return {}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            remedy = f"remove that file, then run 'longtake weights import' for each file in {self.path / 'files'}"
            raise StorageError(f"{self.index} is damaged ({error}); {remedy}") from error

    def find(self, net: str) -> KnownWeights | None:
        """The weights of a net with the hash of what the file holds now; None if there are none or the file is gone."""
        known = self.registered().get(bare_name(net))
        if known is None:
            return None
        try:
            now = known.path.stat()
            if (now.st_size, now.st_mtime_ns) == (known.size, known.mtime_ns):
                return known
            return self._update_index(_with_current_hash(known))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageError(f"cannot read {known.path}, the weights of '{net}' ({error.strerror})") from error

    def rehashed(self, net: str) -> KnownWeights | None:
        """The weights of a net, hashed anew even if the file looks untouched. The index stays as it is."""
        known = self.registered().get(bare_name(net))
        try:
            return _with_current_hash(known) if known else None
        except FileNotFoundError:
            return None

    def register(self, net: str, path: Path, source: str, how: How = "downloaded") -> KnownWeights:
        """Note that a file, left where it is, holds the weights of a net; it takes the place of what was noted before."""
        path, bare = _existing(path), bare_name(net)
        known = _with_current_hash(KnownWeights(net if bare == net else net.partition("@")[0], path, "", 0, 0, source, how))
        with self._changing() as rows:
            rows[bare] = known
        return known

    def import_file(self, net: str, file: Path, source: str | None = None) -> KnownWeights:
        """Copy a file into the folder, named by its hash, and note it as the weights of a net."""
        bare_name(net)
        file = _existing(file)
        sha256 = hash_file(file)
        ending = ".safetensors" if file.suffix.lower() == ".safetensors" else ".pth"
        kept = self.path / "files" / f"{sha256}{ending}"
        if not kept.is_file() or hash_file(kept) != sha256:  # a copy that a disk spoilt is made good
            with wrap_os_errors(kept), replacing(kept) as temp:
                shutil.copyfile(file, temp)
                if hash_file(temp) != sha256:
                    raise BadInput(f"{file} changed while it was copied; import it again once it is complete")
        readable = os.fsencode(file.name).decode("utf-8", "replace")
        return self.register(net, kept, source or f"imported from {readable}", "imported")

    def _update_index(self, known: KnownWeights) -> KnownWeights:
        with suppress(OSError, StorageError), self._changing() as rows:  # a read-only folder costs a hash at every call
            bare = bare_name(known.net)
            if bare in rows and rows[bare].path == known.path:  # else another process chose other weights meanwhile
                rows[bare] = known
        return known

    @contextmanager
    def _changing(self) -> Iterator[dict[str, KnownWeights]]:
        """The rows, to be changed in place; no other process changes them meanwhile."""
        with wrap_os_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            with file_lock(self.path / "index.lock"):
                rows = self.registered()
                yield rows
                nets = {bare: {**asdict(rows[bare]), "path": str(rows[bare].path)} for bare in sorted(rows)}
                write_json(self.index, {"version": 1, "nets": nets})


def _existing(path: Path) -> Path:
    path = path.expanduser().absolute()
    if not path.is_file():
        raise BadInput(f"no weights file at {path}; give the path of a .safetensors or .pth file")
    return path


def _with_current_hash(known: KnownWeights) -> KnownWeights:
    """The same file with the hash, size and time that it has now."""
    before = known.path.stat()  # taken first: a change during the hash is then seen the next time
    return replace(known, sha256=hash_file(known.path), size=before.st_size, mtime_ns=before.st_mtime_ns)


def hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def bare_name(net: str) -> str:
    """The name that weights go by: without the library, as in timm:resnet101, and without how the net is used, as in
    fasterrcnn_resnet50_fpn_v2@320, since neither makes them other weights."""
    if net.startswith("hf:"):  # a repository or a folder: its last part alone could mean several
        return net
    if not _NET.fullmatch(net):
        raise BadInput(f"{net!r} cannot be the name of a net; names are like resnet101, timm:resnet50 or tv:s3d")
    return net.rpartition(":")[2].partition("@")[0]
