"""Text as a terminal, a spreadsheet or a log may safely show it: names and captions of unknown origin, addresses with a login."""

import re
from urllib.parse import urlsplit

# Controls but for tab and newline, line and paragraph separators, the marks that turn the writing direction around, and
# halves of surrogate pairs, which nothing can encode.
_UNSEEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def visible(text: str) -> str:
    """The text with what a terminal would obey instead of showing it written out: \\x1b for an escape character."""
    return _UNSEEN.sub(lambda found: found.group().encode("unicode_escape").decode("ascii"), text)


def no_formula(text: str) -> str:
    """A cell that no spreadsheet computes: a quote before a beginning that would make it a formula."""
    return f"'{text}" if text.startswith(_FORMULA) else text


def no_formula_path(path: str) -> str:
    """A path that no spreadsheet computes and that still leads to the same file."""
    return f"./{path}" if path.startswith(_FORMULA) else path


def has_login(url: str) -> bool:
    """Whether an address carries a user or a password."""
    return "@" in urlsplit(url).netloc


def without_login(url: str) -> str:
    """The address as it may be shown: without the user and password that stand in it."""
    return urlsplit(url)._replace(netloc=urlsplit(url).netloc.rpartition("@")[2]).geturl()
