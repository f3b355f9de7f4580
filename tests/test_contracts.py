"""What the rooms agree on: one name for one class, and equal values where two rooms that do not import each other hold them."""

import ast
from collections import defaultdict
from pathlib import Path

import models.options
import models.types
import storage.options
import storage.text.vocabulary
from tests import ROOT

ROOMS = ("flows", "tasks", "models", "storage")
TWICE = {
    "Options": "storage and models do not import each other; a test below compares the two",
    "_Run": "private to the pages of one run and of several; each loads what its page shows",
}
"""class names that may be defined in two modules, with the reason"""


def test_no_two_classes_have_one_name() -> None:
    found = defaultdict(list)
    for path in (path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(str(path.relative_to(ROOT)))
    assert {name: paths for name, paths in found.items() if len(paths) > 1 and name not in TWICE} == {}


def names_in(path: Path) -> set[str]:
    """The names of a module, its classes, functions, arguments, attributes and variables."""
    names = {path.stem}
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.ClassDef() | ast.FunctionDef():
                names.add(node.name)
            case ast.arg() | ast.keyword() if node.arg:
                names.add(node.arg)
            case ast.Attribute():
                names.add(node.attr)
            case ast.Name():
                names.add(node.id)
    return names


PRIVATE_WORDS = (
    *("Work", "Made", "Job", "Done", "Foresight", "foresee", "memo", "intact", "carry_out", "carry_out_step", "carry_here"),
    *("run_inside", "Look", "LookJob", "Listen", "Piece", "Missed", "StartOver", "Tick", "End", "Station", "owed", "owner", "ns"),
    *("said", "told", "spoken", "speak", "forced", "real", "chances", "beginnings", "tail", "gaze", "gazes", "twins", "loose"),
    *(
        "glance",
        "looks",
        "jumps",
        "upkeep",
        "lifelines",
        "crashes",
        "choosing",
        "judge",
        "Judgement",
        "Rules",
        "Rebuilt",
        "leads",
    ),
    *("agree", "PassingFailure", "Offer", "News", "bury", "retire", "figures", "facts"),
)
"""names that only Longtake used; the field's words took their places"""


def test_the_private_language_is_gone() -> None:
    found = {}
    for path in (path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))):
        if private := {name for name in names_in(path) if name.strip("_") in PRIVATE_WORDS}:
            found[str(path.relative_to(ROOT))] = private
    assert found == {}


def test_a_rooms_top_level_is_short_and_the_top_of_tasks_is_stages() -> None:
    for room in ROOMS:
        assert len([path for path in (ROOT / room).iterdir() if path.is_file()]) <= 17, room
    for path in (ROOT / "tasks").glob("*.py"):
        assert path.stem == "__init__" or "@stage(" in path.read_text(), path


def test_models_and_storage_have_the_same_special_tokens() -> None:
    names = ("PAD", "BOS", "EOS", "UNK")
    token_ids = [getattr(storage.text.vocabulary, name) for name in names]
    assert token_ids == [getattr(models.types, name) for name in names]
    assert len(set(token_ids)) == len(storage.text.vocabulary.SPECIAL_TOKENS)


def test_options_are_frozen_and_closed_in_models_and_storage_alike() -> None:
    ours, theirs = models.options.Options.model_config, storage.options.Options.model_config
    shared = ("frozen", "extra", "use_attribute_docstrings")
    assert [ours.get(name) for name in shared] == [theirs.get(name) for name in shared] == [True, "forbid", True]
