"""The backbones by the names that users know: one table says which file loads each. Importing it loads no torch."""

from __future__ import annotations

import difflib
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, cast

from models.backbones import hf_folder

if TYPE_CHECKING:
    from models.backbones.backbone import Backbone

BACKBONES = {
    # one frame per item
    "inception_v4": "image",
    "resnet101": "image",
    "resnet152": "image",
    "resnext101_32x8d": "image",
    "tf_efficientnet_lite2": "image",  # its weights come with Longtake
    # a clip of frames per item
    "r3d_18": "motion",
    "resnext101_3d": "resnext3d",
    "i3d": "i3d",
    # boxes per frame
    "fasterrcnn_resnet50_fpn_v2": "region",
    # sound
    "vggish": "vggish",
    "log_mel": "log_mel",
}
"""name -> the module beside this one whose load(name, weights, seed) gives the backbone"""
LISTENING = ("vggish", "log_mel")
"""nets that hear sound and see no frames"""
WEIGHTLESS = ("log_mel",)
"""nets that have nothing to learn and want no file"""

PREFIXES = {"timm:": "image", "tv:": "motion"}
"""what opens any other net of timm or any other video net of torchvision -> its module"""
SIZED = ("region", "image")
"""modules whose nets can be asked for at another size of frame, as in fasterrcnn_resnet50_fpn_v2@320 or resnet101@448"""


class UnknownBackbone(ValueError):
    """A name that no backbone has: says which there are."""


class UnknownOutput(ValueError):
    """An output that a backbone does not have: says which it has."""


def canonical(name: str) -> str:
    """The one name of a net that has two, such as resnet101 for timm:resnet101; a folder's path becomes absolute."""
    if name.startswith(hf_folder.PREFIX):
        return hf_folder.absolute(name)
    for prefix, module in PREFIXES.items():
        if BACKBONES.get(name.removeprefix(prefix).partition("@")[0]) == module:
            return name.removeprefix(prefix)
    return name


def module_of(name: str) -> str:
    """Which module loads a backbone; an unknown name is refused with the known ones."""
    if name.startswith(hf_folder.PREFIX):
        if not hf_folder.is_name(name):
            what = "say hf:<owner>/<repository> of Hugging Face's hub, or hf:./FOLDER"
            raise UnknownBackbone(f"'{name}' names no model of transformers; {what}")
        return "hf"
    name = canonical(name)
    whole, at, _ = name.partition("@")
    if name in BACKBONES or (at and BACKBONES.get(whole) in SIZED):
        return BACKBONES[whole]
    for prefix, module in PREFIXES.items():
        plain = whole if module in SIZED else name
        if name.startswith(prefix) and plain.removeprefix(prefix) in _names_behind(prefix):
            return module
    raise UnknownBackbone(_unknown(name))


def open_backbone(name: str, weights: Path | None, seed: int) -> Backbone:
    """A backbone by name, with the weights of a file, or with random ones from a seed."""
    module = import_module(f"models.backbones.{module_of(name)}")
    return cast("Backbone", module.load(canonical(name), weights, seed))


def check_output(backbone: Backbone, output: str) -> tuple[int, ...]:
    """The shape of one item's output; an output that the backbone does not have is refused with those it has."""
    if output not in backbone.outputs:
        why = "; its weights hold no classifier" if output == "classes" else ""
        raise UnknownOutput(f"'{backbone.name}' has no output '{output}'{why}; it has {', '.join(backbone.outputs)}")
    return backbone.outputs[output]


def _names_behind(prefix: str) -> frozenset[str]:
    if prefix == "timm:":
        import timm

        return frozenset([*timm.list_models(include_tags=False), *timm.list_models(include_tags=True)])
    from models.backbones.motion import NAMES

    return frozenset(NAMES)


def _unknown(name: str) -> str:
    plain = name.partition(":")[2] if name.startswith(tuple(PREFIXES)) else name
    known = {n: n for n in BACKBONES}
    known |= {n: canonical(f"{prefix}{n}") for prefix in PREFIXES for n in sorted(_names_behind(prefix))}
    near = dict.fromkeys(known[n] for n in difflib.get_close_matches(plain, list(known), n=5))
    similar = f"; similar: {', '.join(near)}" if near else ""
    every = f"{', '.join(BACKBONES)}, timm:<any net of timm>, tv:<any video net of torchvision>, hf:<a model of transformers>"
    return f"there is no backbone '{name}'{similar}; known: {every}"
