"""All commands of the program, as typer knows them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click
import typer.main

from flows.cli.main import app


def commands(group: Any = None, name: str = "longtake") -> Iterator[tuple[str, click.Command]]:
    """Every command by its full name."""
    group = group or typer.main.get_command(app)
    for word, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{name} {word}")
        else:
            yield f"{name} {word}", command
