"""The base of every option class of this room: frozen, closed, each field with a one-line description."""

from pydantic import BaseModel, ConfigDict


class Options(BaseModel):
    """Values that steer one net, loss or loop. Unknown keys are an error; values never change after loading."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, protected_namespaces=())
