"""How help is shown: flags without a type, since they take no value, and brackets as they are written."""

from typing import Any

import typer
from rich.markup import escape
from typer.core import TyperCommand, TyperGroup


class PlainCommand(TyperCommand):
    """A command with such help."""

    def get_params(self, ctx: Any) -> Any:
        return [_plain(parameter) for parameter in super().get_params(ctx)]


class PlainGroup(TyperGroup):
    """A group of commands with such help."""

    def get_params(self, ctx: Any) -> Any:
        return [_plain(parameter) for parameter in super().get_params(ctx)]


def show_plainly(app: typer.Typer) -> None:
    """Let every command of the program, and of its groups, show its help so."""
    app.info.cls = PlainGroup
    for command in app.registered_commands:
        command.cls = PlainCommand
    for group in app.registered_groups:
        if group.typer_instance:
            show_plainly(group.typer_instance)


def _plain(parameter: Any) -> Any:
    """Parameters are asked for more than once; then they are plain already."""
    if getattr(parameter, "is_flag", False):
        parameter.metavar = ""
    text = getattr(parameter, "help", None)
    if text and "\\[" not in text:
        parameter.help = escape(text)
    return parameter
