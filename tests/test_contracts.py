"""What the rooms agree on: one name for one class, and equal values where two rooms that do not import each other hold them."""

import ast
from collections import defaultdict

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


def test_models_and_storage_have_the_same_special_tokens() -> None:
    names = ("PAD", "BOS", "EOS", "UNK")
    token_ids = [getattr(storage.text.vocabulary, name) for name in names]
    assert token_ids == [getattr(models.types, name) for name in names]
    assert len(set(token_ids)) == len(storage.text.vocabulary.SPECIAL_TOKENS)


def test_options_are_frozen_and_closed_in_models_and_storage_alike() -> None:
    ours, theirs = models.options.Options.model_config, storage.options.Options.model_config
    shared = ("frozen", "extra", "use_attribute_docstrings")
    assert [ours.get(name) for name in shared] == [theirs.get(name) for name in shared] == [True, "forbid", True]
