"""Untrusted YAML: plain values only, and a limited number of them. A few lines of aliases can stand for a billion."""

from typing import Any

import yaml

_MOST_CHARACTERS = 1_000_000
_MOST_VALUES = 100_000
_DEEPEST = 50


class _PlainLoader(yaml.SafeLoader):
    """Nothing but text, numbers, lists and mappings, nested no deeper than a recipe ever is."""

    def __init__(self, text: str):
        super().__init__(text)
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise yaml.YAMLError(f"it is nested deeper than {_DEEPEST} levels")
        node: yaml.Node | None = super().compose_node(parent, index)
        self._depth -= 1
        return node


def read_yaml(text: str) -> Any:
    """The values of a YAML text; YAMLError says what is wrong with it."""
    if len(text) > _MOST_CHARACTERS:
        raise yaml.YAMLError(f"it has {len(text):,} characters; {_MOST_CHARACTERS:,} is the most that is read")
    loader = _PlainLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        if (count := _values_in(node, {}, ())) > _MOST_VALUES:
            raise yaml.YAMLError(f"its aliases make {count:.0e} values of it; {_MOST_VALUES:,} is the most that is read")
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _values_in(node: yaml.Node, known: dict[yaml.Node, int], above: tuple[yaml.Node, ...]) -> int:
    """How many values a node stands for with every alias written out."""
    if node in above:
        raise yaml.YAMLError("an alias in it stands for what it is a part of")
    if node not in known:
        below: list[yaml.Node] = []
        if isinstance(node, yaml.MappingNode):
            below = [part for pair in node.value for part in pair]
        elif isinstance(node, yaml.SequenceNode):
            below = node.value
        known[node] = 1 + sum(_values_in(part, known, (*above, node)) for part in below)
    return known[node]
