"""The names of the classes that published nets were trained on, as torchvision lists them: ImageNet's 1000, Kinetics' 400."""

from functools import cache

from models.backbones.zoo import module_of

_SETS = {"image": 1000, "motion": 400, "resnext3d": 400, "i3d": 400}
"""module of the zoo -> how many classes its pretrained nets have, in the order of that list"""


def class_names(net: str, count: int) -> tuple[str, ...] | None:
    """What the classes of a net with its pretrained weights are called; None where no such list is known."""
    return _names(count) if _SETS.get(module_of(net)) == count else None


@cache
def _names(count: int) -> tuple[str, ...]:
    from torchvision.models import ResNet18_Weights
    from torchvision.models.video import R3D_18_Weights

    weights = R3D_18_Weights.DEFAULT if count == 400 else ResNet18_Weights.DEFAULT
    return tuple(weights.meta["categories"])
