"""The console that commands and stages print to: control characters in the text are shown, not obeyed."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from storage.files.sanitising import visible


class PlainConsole(Console):
    """A console for untrusted text: a file's name cannot move the cursor or clear the screen. Markup is still up to the caller
    (`rich.markup.escape`)."""

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(visible(text), **options)

    def print_line(self, text: str, markup: bool = True) -> None:
        """Print one line as it is: numbers are not coloured, and a long line is the terminal's to wrap."""
        self.print(text, markup=markup, highlight=False, soft_wrap=True)
