"""The base of every option class: frozen, closed, each field with a one-line description that is also its help."""

from pydantic import BaseModel, ConfigDict


class Options(BaseModel):
    """Values that steer one piece of code. Unknown keys are an error; values never change after loading."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)
