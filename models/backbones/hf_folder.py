"""Models of transformers by name, `hf:<repository of the hub>` or `hf:<folder>`: what files they are made of, and their settings.
Loads neither torch nor transformers."""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

PREFIX = "hf:"
WEIGHTS = "model.safetensors"
CONFIG = "config.json"
VIDEO_PROCESSOR = "video_preprocessor_config.json"
PROCESSORS = ("preprocessor_config.json", VIDEO_PROCESSOR, "processor_config.json")
SETTINGS = (CONFIG, *PROCESSORS)

_REPOSITORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,95}/[A-Za-z0-9][A-Za-z0-9_.-]{0,95}")
_OPENINGS = (".", "/", "~")  # of a path; all else is a repository
_LOADS_CODE = re.compile(r"_?(attn|experts)_implementation(_internal)?|quantization_config|kernel_config|use_kernels")
_HARMLESS = (None, False, "eager", "sdpa")


class BadFolder(ValueError):
    """A folder that holds no model that may be loaded: says why, and what to do."""


def is_name(name: str) -> bool:
    """Whether this is hf:<owner>/<repository> or hf: and a path that begins with ., / or ~."""
    source = name.removeprefix(PREFIX)
    return name.startswith(PREFIX) and (source.startswith(_OPENINGS) or _REPOSITORY.fullmatch(source) is not None)


def absolute(name: str) -> str:
    """The name, with the whole path of a folder."""
    folder = folder_in(name)
    return name if folder is None else f"{PREFIX}{folder}"


def folder_in(name: str) -> Path | None:
    """The folder that a name gives; None: it names a repository."""
    source = name.removeprefix(PREFIX)
    return Path(source).expanduser().absolute() if source.startswith(_OPENINGS) else None


def short(name: str) -> str:
    """A name for a feature or a folder: hf-clip-vit-base-patch32 of hf:openai/clip-vit-base-patch32."""
    last = name.removeprefix(PREFIX).rstrip("/").rpartition("/")[2]
    return "hf-" + re.sub(r"[^A-Za-z0-9._-]+", "-", last)[:60]


def is_complete(folder: Path, weights: bool = True) -> bool:
    """Whether a folder has the files that a model needs."""
    needed = [CONFIG, WEIGHTS] if weights else [CONFIG]
    return all((folder / name).is_file() for name in needed) and any((folder / name).is_file() for name in PROCESSORS)


def weights_in(folder: Path) -> Path:
    """The file of weights in a folder that has all that a model needs; else says what it lacks."""
    if not folder.is_dir():
        raise BadFolder(f"there is no folder {folder}; give one that save_pretrained wrote, or <owner>/<repository> of the hub")
    save = "save model and processor again with save_pretrained(FOLDER, max_shard_size='100GB') of transformers"
    if not (folder / WEIGHTS).is_file():
        others = [path.name for path in sorted(folder.glob("*")) if path.suffix in (".bin", ".pt", ".pth", ".safetensors")]
        pickled = any(not name.endswith(".safetensors") for name in others)
        found = f"it holds {', '.join(others[:3])}" if others else "it holds no weights"
        why = ", and Longtake opens no pickles" if pickled else ""
        raise BadFolder(f"{folder} has no {WEIGHTS} ({found}{why}); where you trust its origin, {save}")
    if not is_complete(folder):
        raise BadFolder(f"{folder} lacks {CONFIG} or {PROCESSORS[0]} (or {VIDEO_PROCESSOR}); {save}")
    return folder / WEIGHTS


def read_settings(folder: Path) -> dict[str, dict[str, Any]]:
    """file -> what it says, of the config and the processors that are there. What asks for code from elsewhere is refused."""
    found = {}
    for path in (folder / name for name in SETTINGS):
        if path.is_file():
            try:
                found[path.name] = json.loads(path.read_bytes())
                refused = _asks_for_code(found[path.name])
            except (ValueError, RecursionError) as error:
                raise BadFolder(f"{path} is no JSON ({error}); get it again") from error
            if refused or not isinstance(found[path.name], dict):
                raise BadFolder(f"{path} is refused: {refused or 'it'} is not what a plain model has; save the model without it")
    return found


def settings_digest(folder: Path) -> str:
    """The hash of the config and the processors' settings, byte by byte."""
    hashed = hashlib.blake2b(digest_size=16)
    for path in (folder / name for name in SETTINGS):
        content = path.read_bytes() if path.is_file() else b""
        hashed.update(f"{path.name} {len(content)}\n".encode() + content)
    return hashed.hexdigest()


def labels(folder: Path) -> list[str] | None:
    """What the classes of a model's head are called; None where its config does not say."""
    named = read_settings(folder).get(CONFIG, {}).get("id2label")
    if not isinstance(named, dict):
        return None
    found = [named.get(str(n)) for n in range(len(named))]
    names = ["".join(c for c in name if c.isprintable()) for name in found if isinstance(name, str)]
    return names if len(names) == len(named) else None


def _asks_for_code(value: Any) -> str:
    """The first setting, at any depth, that would make transformers load more than a model: attention kernels, quantisers."""
    if isinstance(value, dict):
        for key, v in value.items():
            if _LOADS_CODE.fullmatch(key) and not any(v is harmless or v == harmless for harmless in _HARMLESS):
                return f"'{key}'"
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return next((asked for each in inner if (asked := _asks_for_code(each))), "")
