"""Where pretrained weights come from: the file that each backbone wants, and fetching it into the cache of its own library:
timm's and transformers' into Hugging Face's, torchvision's and VGGish's into torch.hub's, where whatever else uses these
libraries finds them. What an installed package holds (`packaged.py`) is not fetched."""

import re
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import torch.hub
from huggingface_hub import constants, hf_hub_download, try_to_load_from_cache
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

from models.backbones import hf_folder
from models.backbones.packaged import PACKAGES, WeightsPackage
from models.backbones.weights import WeightsUnavailable, first_line
from models.backbones.zoo import BACKBONES, WEIGHTLESS, canonical, module_of

_VGGISH = "https://github.com/harritaylor/torchvggish/releases/download/v0.1/vggish-10086976.pth"
_KINETICS = "the Google Drive folder that the README of github.com/kenshohara/3D-ResNets-PyTorch links to"

_HUB_FILES = ("model.safetensors", "pytorch_model.bin")  # timm reads the first of these that a repository has
_SECONDS = 10.0  # without an answer, a server counts as out of reach
_HASH = re.compile(r"-([0-9a-f]{8,64})\.")  # torch.hub's custom: the name holds the beginning of the file's sha256


@dataclass(frozen=True)
class WantedFile:
    """The published weights of a net: repo on Hugging Face's hub if it lies there, else its url, or its location in words.
    sha256 is the hash or its beginning, if known beforehand; licence, if its publisher states one."""

    net: str
    file: str
    repo: str = ""
    url: str = ""
    location: str = ""
    sha256: str = ""
    licence: str = ""
    package: WeightsPackage | None = None
    """the installed package that brought it"""

    @property
    def source(self) -> str:
        if self.package:
            return self.package.described
        return f"https://huggingface.co/{self.repo}" if self.repo else self.url or self.location


def wanted_file(net: str) -> WantedFile:
    """Which file holds the pretrained weights of a net, and where it is to be had."""
    module = module_of(net)
    if module == "hf":
        if folder := hf_folder.folder_in(net):
            return WantedFile(canonical(net), hf_folder.WEIGHTS, location=f"the folder {folder}")
        return WantedFile(net, hf_folder.WEIGHTS, repo=net.removeprefix(hf_folder.PREFIX))
    net = canonical(net).partition("@")[0]  # the size of its frames does not make them other weights
    if module == "image":
        package = PACKAGES.get(net.removeprefix("timm:"))
        return _in_package(net, package) if package and package.path else _of_timm(net)
    if module == "i3d":
        package = PACKAGES[net]
        return _in_package(net, package) if package.path else _not_installed(net, package)
    if net in WEIGHTLESS:
        return WantedFile(net, "", location="nowhere: it has no weights")
    if module == "vggish":
        return _at(net, _VGGISH)
    if module == "resnext3d":
        return WantedFile(net, "resnext-101-kinetics.pth", location=_KINETICS)
    from torchvision.models import get_model_weights

    return _at(net, get_model_weights(net.removeprefix("tv:")).DEFAULT.url)


def published_files() -> dict[str, WantedFile]:
    """File name -> whose weights it holds, for names that tell."""
    from models.backbones.motion import NAMES

    nets = [*(net for net in BACKBONES if net not in WEIGHTLESS), *(canonical(f"tv:{name}") for name in NAMES)]
    wanted = [each for net in dict.fromkeys(nets) if not (each := wanted_file(net)).package]
    # Files on the hub all have the same name; the same weights were published under telling names before.
    earlier = [_at(w.net, url) for w in wanted if w.repo and (url := _timm_config(w.net).url)]
    return {w.file: w for w in (*wanted, *earlier) if w.file not in _HUB_FILES}


def cached(net: str) -> Path | None:
    """The pretrained weights of a net, if they are in a cache of this machine already."""
    wanted = wanted_file(net)
    if wanted.package:
        return wanted.package.path
    if module_of(net) == "hf":
        folder = hf_folder.folder_in(net) or _cached_folder(net)
        return folder / wanted.file if folder and hf_folder.is_complete(folder) else None
    if wanted.repo:
        repo, _, revision = wanted.repo.partition("@")
        files = dict.fromkeys([wanted.file, *(_HUB_FILES if wanted.file in _HUB_FILES else ())])
        found = (try_to_load_from_cache(repo, file, revision=revision or None) for file in files)
        return next((Path(path) for path in found if isinstance(path, str)), None)
    path = _torch_cache() / wanted.file
    return path if wanted.url and path.is_file() else None


def fetch(net: str) -> Path:
    """The file with the pretrained weights of a net, downloaded if no cache has it."""
    wanted = wanted_file(net)
    if module_of(net) == "hf":
        return hf_folder.weights_in(fetch_folder(net))
    found = cached(net)
    if found is not None:
        return found
    if not wanted.repo and not wanted.url:
        package = net in PACKAGES
        reason = "the package is not installed" if package else "its publisher gives no address that a program could use"
        raise WeightsUnavailable(_explained(wanted, reason))
    with _explaining(wanted):
        return _from_hub(wanted) if wanted.repo else _from_url(wanted)


def fetch_folder(net: str, weights: bool = True) -> Path:
    """The folder of a model of transformers: its own, or the hub's cache of it, with what was missing downloaded. Without
    `weights`, its settings are enough."""
    if folder := hf_folder.folder_in(net):
        return hf_folder.weights_in(folder).parent
    found, wanted = _cached_folder(net), wanted_file(net)
    if found and hf_folder.is_complete(found, weights):
        return found
    with _explaining(wanted):
        _await_answer()
        download = partial(hf_hub_download, wanted.repo, etag_timeout=_SECONDS)
        found = Path(download(hf_folder.CONFIG)).parent
        for file in [*hf_folder.PROCESSORS, *([wanted.file] if weights else [])]:
            try:
                download(file, revision=found.name)  # all of one commit
            except EntryNotFoundError as error:
                if isinstance(error, LocalEntryNotFoundError):  # nobody answers any more
                    raise
    return found


def _cached_folder(net: str) -> Path | None:
    found = try_to_load_from_cache(wanted_file(net).repo, hf_folder.CONFIG)
    return Path(found).parent if isinstance(found, str) else None


@contextmanager
def _explaining(wanted: WantedFile) -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError, ValueError, EntryNotFoundError) as error:
        raise WeightsUnavailable(_explained(wanted, str(getattr(error, "reason", "")) or first_line(error))) from error


def _await_answer() -> None:
    if constants.HF_HUB_OFFLINE:
        raise OSError("HF_HUB_OFFLINE is set")
    # Fail within seconds where nobody answers: the hub's own client would try six times, ever more slowly.
    with suppress(HTTPError):  # it answers: what it says of the file itself is for its client to understand
        urlopen(Request(constants.ENDPOINT, method="HEAD"), timeout=_SECONDS).close()  # noqa: S310 - an https address


def _from_hub(wanted: WantedFile) -> Path:
    _await_answer()
    repo, _, revision = wanted.repo.partition("@")
    download = partial(hf_hub_download, repo, revision=revision or None, etag_timeout=_SECONDS)
    try:
        return Path(download(wanted.file))
    except EntryNotFoundError:
        if wanted.file not in _HUB_FILES:
            raise
        return Path(download(_HUB_FILES[1]))


def _from_url(wanted: WantedFile) -> Path:
    target = _torch_cache() / wanted.file
    target.parent.mkdir(parents=True, exist_ok=True)
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_SECONDS)  # torch.hub waits for ever on a connection that went dead; this makes it give up
    try:
        torch.hub.download_url_to_file(wanted.url, str(target), wanted.sha256 or None, progress=sys.stderr.isatty())
    finally:
        socket.setdefaulttimeout(before)
    return target


def _torch_cache() -> Path:
    return Path(torch.hub.get_dir()) / "checkpoints"


def _in_package(net: str, package: WeightsPackage) -> WantedFile:
    return WantedFile(net, package.file_name, sha256=package.sha256, licence=package.licence, package=package)


def _not_installed(net: str, package: WeightsPackage) -> WantedFile:
    location = f"{package.described} ({package.command})"
    return WantedFile(net, package.file_name, location=location, sha256=package.sha256, licence=package.licence)


def _of_timm(net: str) -> WantedFile:
    config = _timm_config(net)
    licence = config.license or ""
    if config.hf_hub_id:
        return WantedFile(net, config.hf_hub_filename or _HUB_FILES[0], repo=config.hf_hub_id, licence=licence)
    if config.url:
        return _at(net, config.url, licence)
    return WantedFile(net, "", location="nowhere: timm publishes no weights of this net", licence=licence)


def _timm_config(net: str) -> Any:
    import timm

    return timm.get_pretrained_cfg(net.removeprefix("timm:"), allow_unregistered=True)


def _at(net: str, url: str, licence: str = "") -> WantedFile:
    file = url.rpartition("/")[2]
    beginning = _HASH.search(file)
    return WantedFile(net, file, url=url, sha256=beginning[1] if beginning else "", licence=licence)


def _explained(wanted: WantedFile, why: str) -> str:
    hashed = f"its sha256 begins with {wanted.sha256}" if wanted.sha256 else "its sha256 is not known beforehand"
    what = f"the file {wanted.file}, from {wanted.source} ({hashed})" if wanted.file else f"from {wanted.source}"
    advice = f"get it where there is a network, then run 'longtake weights import FILE --net {wanted.net}'"
    if wanted.net.startswith(hf_folder.PREFIX):
        what = f"the folder of {', '.join([hf_folder.CONFIG, *hf_folder.PROCESSORS[:2], wanted.file])}, from {wanted.source}"
        what += " (one of the two processors is enough)"
        advice = f"get it where there is a network, then run 'longtake weights import FOLDER --net {wanted.net}' or name the net "
        return _unavailable(wanted, why, what, advice + "hf:./FOLDER")
    if package := PACKAGES.get(wanted.net.removeprefix("timm:")):
        advice = f"{package.command}, which holds them, or {advice}"
    return _unavailable(wanted, why, what, f"{advice}; or say 'weights: random' in the recipe, only to try the plumbing")


def _unavailable(wanted: WantedFile, why: str, what: str, advice: str) -> str:
    return f"the pretrained weights of '{wanted.net}' are not here and cannot be fetched ({why}); wanted: {what}; {advice}"
