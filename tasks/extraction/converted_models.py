"""Nets that were converted for OpenVINO, kept in the user's cache folder: openvino/<net>-<key>/model.xml and model.bin.

A folder is renamed in when it is complete. Its key holds all that the files come from: so a net is never run as it used to be."""

from functools import cache
from importlib.metadata import version
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any

import models.backbones
from models.backbones import hf_folder
from models.backbones.backbone import Backbone
from models.backbones.openvino_model import CannotConvert, convert
from storage.errors import BadInput, wrap_os_errors
from storage.files.atomic import sync_file
from storage.files.hashing import digest, digest_file
from storage.weights import cache_folder
from tasks.framework.progress import console

MODEL = "model.xml"


def converted(backbone: Backbone, name: str, shape: tuple[int, ...], weights: list[Any]) -> Path:
    """The file of a backbone for batches of this shape, made if this machine has none. `weights` says which weights it has."""
    hf = name.startswith(hf_folder.PREFIX)
    made_by = [version(package) for package in ("openvino", "torch", "torchvision", "timm", *(("transformers",) if hf else ()))]
    key = digest("openvino", name, weights, shape, made_by, _backbone_code())
    folder = cache_folder() / "openvino" / f"{hf_folder.short(name) if hf else name.replace(':', '-')}-{key[:16]}"
    if not folder.is_dir():
        console.print(f"converting {name} for OpenVINO (once)", highlight=False, markup=False)
        with wrap_os_errors(folder.parent):
            folder.parent.mkdir(parents=True, exist_ok=True)
            made = Path(mkdtemp(dir=folder.parent, prefix=".new-"))
            try:
                convert(backbone, shape, made / MODEL)
                for file in made.iterdir():
                    sync_file(file)
                made.rename(folder)
            except CannotConvert as error:
                raise BadInput(f"{error}; set runtime.engine to torch") from error
            except OSError:
                if not folder.is_dir():  # else another process was first
                    raise
            finally:
                rmtree(made, ignore_errors=True)
    return folder / MODEL


@cache
def _backbone_code() -> list[str]:
    return [digest_file(file) for file in sorted(Path(models.backbones.__path__[0]).glob("*.py"))]
