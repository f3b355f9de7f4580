"""The consoles that commands and stages print on: what they are given to show, they show, and nothing in it is obeyed."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from storage.files.sanitising import visible


class PlainConsole(Console):
    """A console for text in which strangers' words may stand: a file's name cannot move the cursor or clear the screen.
    Markup is the caller's business, as ever (`rich.markup.escape`)."""

    def render_str(self, text: str, **how: Any) -> Text:
        return super().render_str(visible(text), **how)
