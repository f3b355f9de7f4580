"""Recipes for people: a line about each, what its paper reports, and all of one with every default filled in and explained."""

import inspect
import json
from collections.abc import Iterator, Mapping
from typing import Any

import yaml
from pydantic import BaseModel

from flows.recipe import Recipe, load_recipe, shipped_recipes
from tasks.reporting.published_scores import BENCHMARKS, PublishedScores

# The published rows of a captioner: their source, and how their names begin.
_ROWS = {
    "glrg": ("GL-RG", ""),
    "g2l": ("G2L", ""),
    "vre": ("VRE", ""),
    "recnet": ("RecNet", "RecNet"),
    "show_tell": ("GLD", "Show-Tell"),
    "top_down": ("GLD", "Top-Down"),
}


def published(recipe: Recipe) -> list[PublishedScores]:
    """What the recipe's paper reports on its data set, the whole model last. Nothing for other data or other captioners."""
    source, beginning = _ROWS.get(recipe.captioner.kind if recipe.captioner else "", ("", ""))
    rows = BENCHMARKS[recipe.dataset.kind].rows if recipe.dataset.kind in BENCHMARKS else ()
    return [row for row in rows if row.source == source and row.name.startswith(beginning)]


def describe_recipes() -> list[dict[str, Any]]:
    """One row for each shipped recipe."""
    found = []
    for name in shipped_recipes():
        recipe = load_recipe(name)
        about = " ".join(recipe.description.split())
        scores = [{"name": row.name, "scores": dict(row.scores)} for row in published(recipe)]
        kinds = {"dataset": recipe.dataset.kind, "captioner": recipe.captioner.kind if recipe.captioner else ""}
        found.append({"name": name, "about": about, **kinds, "published": scores})
    return found


def first_sentence(text: str) -> str:
    """Up to the first full stop that ends one."""
    sentence, stop, _ = text.partition(". ")
    return sentence + "." if stop else text


def as_page(recipe: Recipe) -> str:
    """The recipe as YAML that loads to the same recipe, each value below its description."""
    lines = [line for row in published(recipe) for line in _comment(f"published: {row.name}: {_scores(row.scores)}", "")]
    return "\n".join([*lines, *_section(recipe, "")]) + "\n"


def _scores(scores: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.1f}" for name, value in scores.items())


def published_line(row: Mapping[str, Any]) -> str:
    """The whole model's scores in one line."""
    return f"published ({row['name']}): {_scores(row['scores'])}"


def _section(options: BaseModel, indent: str) -> Iterator[str]:
    plain = options.model_dump(mode="json")
    for name, field in type(options).model_fields.items():
        about = field.description or (inspect.getdoc(type(options)) if name == "kind" else "") or ""
        yield from _comment(about, indent)
        yield from _value(name, getattr(options, name), plain[name], indent)


def _value(name: str, value: Any, plain: Any, indent: str) -> Iterator[str]:
    """`plain` is the value as JSON has it."""
    if isinstance(value, BaseModel):
        yield f"{indent}{_plain(name)}:"
        yield from _section(value, indent + "  ")
    elif isinstance(value, dict) and value:
        yield f"{indent}{_plain(name)}:"
        for key, below in value.items():
            yield from _value(key, below, plain[key], indent + "  ")
    else:
        yield f"{indent}{_plain(name)}: {_plain(plain)}"


def _plain(value: Any) -> str:
    """A value as YAML in one line."""
    if isinstance(value, str) and "\n" in value:
        return json.dumps(value, ensure_ascii=False)
    text = yaml.safe_dump(value, default_flow_style=True, width=10**6, allow_unicode=True)
    return text.removesuffix("...\n").rstrip("\n")


def _comment(text: str, indent: str) -> Iterator[str]:
    """One line, however many the description has."""
    if text:
        yield f"{indent}# {' '.join(text.split())}"
