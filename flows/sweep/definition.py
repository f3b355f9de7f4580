"""Sweeps: variants of one recipe, each with several seeds, planned together so that what they share is computed once.

A sweep is a grid given on the command line, or a file with named variants. The shipped files are the papers' ablation tables."""

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field, ValidationError

from flows.demo import recipe_with_data
from flows.pipeline import plan_pipeline
from flows.plan import Plan
from flows.recipe import Recipe, load_recipe, shipped_recipes
from flows.yaml_text import read_yaml
from storage.errors import LongtakeError, UsageError
from storage.files.hashing import digest
from storage.options import Options
from storage.workspace import Workspace
from tasks.extraction.pretrained import fetch_weights
from tasks.framework.stage import StageRun

SHIPPED = Path(__file__).parents[1] / "sweeps"
UNTIL = "evaluate"  # a sweep compares scores; 'longtake run' writes the report of a run that deserves one


class SweepFile(Options):
    """What a sweep file says."""

    description: str = ""
    """one or two sentences for people"""
    recipe: str
    """the recipe that is varied, unless --recipe names another"""
    set: tuple[str, ...] = ()
    """settings that make this recipe fit for the comparison, such as seeding.epochs=5; --recipe leaves them out"""
    variants: dict[str, tuple[str, ...]] = Field(min_length=1)
    """name of a variant -> its settings; the others are compared with the first. @a.b stands for what the recipe has there"""
    seeds: int = Field(3, ge=1)
    """how often each variant is trained"""


@dataclass(frozen=True)
class Variant:
    """One row of the table: a name and what it sets, in the form of --set."""

    name: str
    settings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Sweep:
    """Variants of a recipe. `settings` are common to all of them and come first."""

    name: str
    recipe: str
    variants: tuple[Variant, ...]
    seeds: int
    settings: tuple[str, ...] = ()
    about: str = ""
    data: Path | None = None
    kind: str | None = None

    @property
    def folder_name(self) -> str:
        """The same for the same question, whatever the number of seeds: a later command adds to an earlier one."""
        asked = [[variant.name, variant.settings] for variant in self.variants]
        return f"{self.name}-{digest(self.recipe, asked, self.settings, str(self.data), self.kind)[:8]}"


@dataclass(frozen=True)
class Cell:
    """One run of a sweep: a variant with a seed. `plan` is None if there can be no such run; `why_not` says why."""

    variant: Variant
    seed: int
    plan: Plan | None
    why_not: str = ""

    @property
    def title(self) -> str:
        return f"{self.variant.name}, seed {self.seed}"

    @property
    def steps(self) -> list[StageRun]:
        return self.plan.steps if self.plan else []


def shipped_sweeps() -> dict[str, Path]:
    return {path.stem: path for path in sorted(SHIPPED.glob("*.yaml"))}


def find_sweep(
    name: str,
    grid: Sequence[str] = (),
    seeds: int | None = None,
    settings: Sequence[str] = (),
    recipe: str | None = None,
    data: Path | None = None,
    kind: str | None = None,
) -> Sweep:
    """The sweep that a command asks for: a shipped one, a sweep file, or a recipe with a grid (without one, its seeds)."""
    path = shipped_sweeps().get(name, Path(name))
    data = data.expanduser().absolute() if data else None
    if name in shipped_sweeps() or _is_sweep_file(path):
        if grid:
            raise UsageError(f"{name} is a sweep and has its own variants; --grid goes with a recipe: leave it out")
        read = read_sweep(path)
        common = (*(read.set if recipe is None else ()), *settings)
        variants = tuple(
            Variant(key, tuple(_filled_in(value, recipe or read.recipe) for value in values))
            for key, values in read.variants.items()
        )
        return Sweep(path.stem, recipe or read.recipe, variants, seeds or read.seeds, common, read.description, data, kind)
    if recipe is not None:
        raise UsageError(
            f"--recipe replaces the recipe of a sweep, but '{name}' is no sweep; "
            f"shipped sweeps: {', '.join(shipped_sweeps())}; or give a file with 'variants'"
        )
    if name not in shipped_recipes() and not Path(name).is_file():
        _refuse(name)
    stem = name if name in shipped_recipes() else Path(name).stem
    return Sweep(_slug(stem), name, variants_of(grid), seeds or 3, tuple(settings), "", data, kind)


def _filled_in(setting: str, recipe: str) -> str:
    """A setting with every @a.b, such as @captioner.temporal, replaced by what the recipe says there."""

    def value(found: re.Match[str]) -> str:
        node: Any = load_recipe(recipe).model_dump(mode="json")
        for key in found[1].split("."):
            if not isinstance(node, dict) or key not in node:
                raise UsageError(f"the sweep's setting {setting!r} refers to {found[1]}, which the recipe {recipe} does not have")
            node = node[key]
        return json.dumps(node)

    return re.sub(r"@([a-z_][a-z_.]*)", value, setting)


def _is_sweep_file(path: Path) -> bool:
    """Whether a file has variants. A recipe is a mapping of sections, none of which is called so."""
    if path.suffix not in (".yaml", ".yml") or not path.is_file():
        return False
    try:
        values = read_yaml(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not valid YAML: {error}") from error
    return isinstance(values, dict) and "variants" in values


def _refuse(name: str) -> None:
    sweeps = ", ".join(shipped_sweeps())
    try:
        load_recipe(name)
    except UsageError as error:
        raise UsageError(f"{error}; shipped sweeps: {sweeps}") from error


def read_sweep(path: Path) -> SweepFile:
    try:
        return SweepFile.model_validate(read_yaml(path.read_text(encoding="utf-8")))
    except ValidationError as error:
        lines = [f"the sweep {path} has {error.error_count()} problem(s):"]
        valid = ", ".join(SweepFile.model_fields)
        for detail in error.errors():
            key = ".".join(map(str, detail["loc"]))
            unknown = f"; valid keys: {valid}" if detail["type"] == "extra_forbidden" else ""
            lines.append(f"  {key}: {detail['msg'][:1].lower()}{detail['msg'][1:]}{unknown}")
        raise UsageError("\n".join(lines)) from error


def variants_of(grid: Sequence[str]) -> tuple[Variant, ...]:
    """Every combination of the values; without a grid, the recipe as it is."""
    keys = [parse_grid(text) for text in grid]
    names = [key for key, _ in keys]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(f"--grid names {twice} twice; give all its values in one: --grid {twice}=a,b,c")
    if not keys:
        return (Variant("as it is"),)
    short = [name.rpartition(".")[2] for name in names]
    shown = short if len(set(short)) == len(short) else names
    variants = []
    for chosen in itertools.product(*(values for _, values in keys)):
        title = ", ".join(f"{key}={value}" for key, value in zip(shown, chosen, strict=True))
        variants.append(Variant(title, tuple(f"{key}={value}" for key, value in zip(names, chosen, strict=True))))
    return tuple(variants)


def parse_grid(text: str) -> tuple[str, list[str]]:
    """'key=a,b,[c, d]' -> key and its values as YAML: commas inside brackets and quotes do not separate."""
    key, equals, rest = text.partition("=")
    if not equals or not key.strip():
        raise UsageError(f"--grid {text!r} is not of the form key.subkey=a,b,c, such as seeding.loss=xe,dxe")
    values, depth, quote = [""], 0, ""
    for letter in rest:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        elif letter in "[{":
            depth += 1
        elif letter in "]}":
            depth -= 1
        elif letter == "," and depth == 0:
            values.append("")
            continue
        values[-1] += letter
    values = [value.strip() for value in values]
    if depth or quote:
        raise UsageError(f"--grid {text!r}: a bracket or a quote is not closed")
    if not all(values):
        raise UsageError(f"--grid {text!r} has an empty value; write null or '' if that is meant")
    if len(set(values)) < len(values):
        raise UsageError(f"--grid {text!r} has a value twice")
    return key.strip(), values


def plan_sweep(sweep: Sweep, workspace: Workspace, dry_run: bool = False) -> list[Cell]:
    """Every run of the sweep with its plan, variant by variant. A variant that cannot be planned keeps the
    reason, and the others go on; if none can be planned, the first error is raised. `dry_run` draws and fetches nothing."""
    cells: list[Cell] = []
    errors: list[LongtakeError] = []
    for variant in sweep.variants:
        try:
            recipe = _recipe(sweep, variant, workspace, dry_run)
            for seed in range(sweep.seeds):
                seeded = with_seed(recipe, seed)
                named = seeded.model_copy(update={"name": _run_name(recipe.name, variant, sweep.settings, seed)})
                cell = Cell(variant, seed, plan := plan_pipeline(named, workspace, until=UNTIL))
                plan.name = cell.title
                cells.append(cell)
        except LongtakeError as error:
            errors.append(error)
            cells += [Cell(variant, seed, None, str(error)) for seed in range(sweep.seeds)]
    if not any(cell.plan for cell in cells):
        raise errors[0]
    return cells


def _recipe(sweep: Sweep, variant: Variant, workspace: Workspace, dry_run: bool) -> Recipe:
    settings = [*sweep.settings, *variant.settings]
    recipe = recipe_with_data(workspace, sweep.recipe, settings, sweep.data, sweep.kind, draw=not dry_run)
    if not dry_run:
        fetch_weights(recipe.wanted_nets)
    return recipe


def with_seed(recipe: Recipe, seed: int) -> Recipe:
    """The seed of the captioner's training. Tagger and embedding keep theirs, so that all seeds share one set of features."""
    update: dict[str, Any] = {"seeding": recipe.seeding.model_copy(update={"seed": seed})}
    if recipe.boosting is not None:
        update["boosting"] = recipe.boosting.model_copy(update={"seed": seed})
    if recipe.ensemble is not None:  # its members have seeds of their own: no two of a sweep's ensembles share one
        own = recipe.ensemble.seeds
        members = tuple(member + seed * (max(own) + 1) for member in own)
        update["ensemble"] = recipe.ensemble.model_copy(update={"seeds": members})
    return recipe.model_copy(update=update)


def _run_name(recipe: str, variant: Variant, common: Sequence[str], seed: int) -> str:
    """Every variant and seed has a name of its own among the runs: else 'longtake gc' would keep the last of them alone."""
    settings_hash = digest(variant.settings, common)[:6]
    return f"{recipe[:24]}.{_slug(variant.name)[:24]}-{settings_hash}.s{seed}"


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "-", text).strip("-_") or "variant"


@dataclass(frozen=True)
class StageCounts:
    """How much work a sweep is: the stages of all its runs, the different ones among them, and those already computed."""

    runs: int
    stages: int
    different: int
    there: int

    @property
    def to_make(self) -> int:
        return self.different - self.there

    def __str__(self) -> str:
        return (
            f"{self.runs} runs with {self.stages} stages, {self.stages - self.different} of them shared, so "
            f"{self.different} to compute; {self.there} are there already: {self.to_make} to do"
        )


def count_stages(cells: Sequence[Cell]) -> StageCounts:
    plans = [cell.plan for cell in cells if cell.plan]
    steps = [step for plan in plans for step in plan.steps]
    different = {step.ref.uri: step for step in steps}
    there = sum(not step.to_do for step in different.values())
    return StageCounts(len(plans), len(steps), len(different), there)


def preparation(cells: Sequence[Cell]) -> list[StageRun]:
    """The stages before the captioner's training in any run, each once: they are the same for all seeds."""
    found: dict[str, StageRun] = {}
    for cell in cells:
        for step in itertools.takewhile(lambda step: step.stage.name != "seed", cell.steps):
            found.setdefault(step.ref.uri, step)
    return list(found.values())


def mark_impossible(cell: Cell, failed: Mapping[str, str]) -> Cell:
    """The run as it is, or without a plan if it needs a stage that failed (URI of its result -> why)."""
    why = next((failed[step.ref.uri] for step in cell.steps if step.ref.uri in failed), "")
    return replace(cell, plan=None, why_not=why) if why else cell
