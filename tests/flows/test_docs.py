"""The pages people read: no dead links, and only commands and options that there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests import ROOT
from tests.flows.cli.command_list import commands

PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMANDS = dict(commands())
GROUPS = {name.rpartition(" ")[0] for name in COMMANDS}


def dead_links(page: Path) -> list[str]:
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())
    return [target for target in targets if "://" not in target and not (page.parent / target).exists()]


def unknown_words(text: str) -> list[str]:
    """Commands and options after the word 'longtake' that the program does not have."""
    unknown = []
    for first, second, rest in re.findall(r"(?<![\w/-])longtake ([a-z]+)(?: ([a-z]+)(?![\w-]))?([^`\n|]*)", text):
        group = f"longtake {first}"
        name = f"{group} {second}" if f"{group} {second}" in COMMANDS else group
        if name not in COMMANDS:
            unknown += [f"{group} {second}".strip()] if group not in GROUPS or second else []
            continue
        known = {option for parameter in COMMANDS[name].params for option in parameter.opts} | {"--help"}
        used = re.findall(r"(?<!\S)--?[a-z][a-z0-9-]*", rest.partition("#")[0])
        unknown += [f"{name} {option}" for option in used if option not in known]
    return unknown


def described(text: str) -> set[str]:
    """Commands of a table of commands: `longtake features list`, `show` names two."""
    found = set()
    for cell in re.findall(r"^\| (`longtake [^|]*)\|", text, re.MULTILINE):
        first, *more = re.findall(r"`([^`]*)`", cell)
        words = first.split()
        group = "longtake " + words[1] if f"longtake {words[1]}" in GROUPS - {"longtake"} else "longtake"
        own = f"{group} {words[2]}" if group != "longtake" else f"longtake {words[1]}"
        found |= {own, *(f"{group} {word.split()[0]}" for word in more)}
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_has_no_dead_links_and_names_only_what_there_is(page: Path) -> None:
    assert dead_links(page) == []
    assert unknown_words(page.read_text()) == []


def test_the_readme_leads_to_every_page_and_describes_every_command() -> None:
    readme = (ROOT / "README.md").read_text()
    assert [page.name for page in (ROOT / "docs").glob("*.md") if f"(docs/{page.name})" not in readme] == []
    assert set(COMMANDS) - described(readme) == set()


def test_a_wrong_command_or_option_would_be_found() -> None:
    assert unknown_words("say `longtake fly` or `longtake run demo --fast`") == ["longtake fly", "longtake run --fast"]
    assert unknown_words("`longtake features burn`, `longtake features list --json`") == ["longtake features burn"]
