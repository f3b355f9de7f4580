"""Sweeps: grids mean what they look like, shared stages are counted once, the table's arithmetic, and every shipped sweep."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from flows.recipe import load_recipe, shipped_recipes
from flows.sweep.definition import (
    Sweep,
    Variant,
    count_stages,
    find_sweep,
    mark_impossible,
    parse_grid,
    plan_sweep,
    preparation,
    read_sweep,
    shipped_sweeps,
    variants_of,
    with_seed,
)
from flows.sweep.table import Spread, SweepResult, failures, headings, table_cells, variant_rows, write_results
from storage.errors import UsageError
from storage.workspace import Workspace
from tasks.reporting.published_scores import ABLATIONS
from tests.flows.conftest import Longtake
from tests.flows.toy_place import AFTER_SEED, LABELS, TOY, Place

TRAINED = AFTER_SEED[:3]  # a sweep makes no report
SHARED = LABELS[: LABELS.index("seed")]


@pytest.mark.parametrize(
    ("text", "key", "values"),
    [
        ("seeding.loss=xe,dxe", "seeding.loss", ["xe", "dxe"]),
        ("seeding.epochs=5", "seeding.epochs", ["5"]),
        (" decoding.width = 1 , 3", "decoding.width", ["1", "3"]),
        ("captioner.features=[a, b],[a],[b]", "captioner.features", ["[a, b]", "[a]", "[b]"]),
        ("boosting=null,{samples: 2, reward: {bleu_4: 1}}", "boosting", ["null", "{samples: 2, reward: {bleu_4: 1}}"]),
        ("about='a, b',\"c=[d\"", "about", ["'a, b'", '"c=[d"']),
        (
            "seeding.scheduled_sampling.points=[[0,1.0]],[[0,0.75],[3,1]]",
            "seeding.scheduled_sampling.points",
            ["[[0,1.0]]", "[[0,0.75],[3,1]]"],
        ),
    ],
)
def test_a_grid_is_cut_at_commas_outside_of_brackets_and_quotes(text: str, key: str, values: list[str]) -> None:
    assert parse_grid(text) == (key, values)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("seeding.loss", "is not of the form key.subkey=a,b,c"),
        ("=a,b", "is not of the form"),
        ("seeding.epochs=1,,2", "has an empty value"),
        ("seeding.epochs=", "has an empty value"),
        ("captioner.features=[a,b", "a bracket or a quote is not closed"),
        ("about='a,b", "a bracket or a quote is not closed"),
        ("seeding.epochs=1,2,1", "has a value twice"),
    ],
)
def test_a_grid_that_means_nothing_is_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse_grid(text)


def test_every_combination_is_a_variant_and_the_first_key_changes_slowest() -> None:
    found = variants_of(["seeding.loss=xe,dxe", "captioner.hidden=8,16"])
    assert [variant.name for variant in found] == [
        "loss=xe, hidden=8",
        "loss=xe, hidden=16",
        "loss=dxe, hidden=8",
        "loss=dxe, hidden=16",
    ]
    assert found[1].settings == ("seeding.loss=xe", "captioner.hidden=16")
    assert variants_of([]) == (Variant("as it is"),)
    alike = variants_of(["seeding.epochs=1,2", "tagger.training.epochs=3"])
    assert alike[0].name == "seeding.epochs=1, tagger.training.epochs=3", "short names would not tell them apart"
    with pytest.raises(UsageError, match=r"--grid names seeding.epochs twice"):
        variants_of(["seeding.epochs=1", "seeding.epochs=2"])


def test_a_seed_is_the_captioners_alone() -> None:
    plain, boosted = load_recipe("demo"), load_recipe("demo", ["boosting={}"])
    for recipe in (plain, boosted):
        seeded = with_seed(recipe, 7)
        assert seeded.seeding.seed == 7 and seeded.tagger == recipe.tagger and seeded.features == recipe.features
    several = load_recipe("demo", ["ensemble={seeds: [0, 2]}"])
    assert with_seed(several, 0) == several and with_seed(several, 2).ensemble.seeds == (6, 8)  # type: ignore[union-attr]
    assert with_seed(boosted, 7).boosting.seed == 7 and with_seed(plain, 7).boosting is None  # type: ignore[union-attr]


def sweep_on(place: Place, *grid: str, seeds: int = 2, settings: tuple[str, ...] = ()) -> Sweep:
    return find_sweep(str(TOY), grid, seeds, settings, data=place.data)


def test_what_variants_share_is_counted_once(place: Place) -> None:
    """In the place everything is made that the first variant wants with seed 0."""
    cells = plan_sweep(sweep_on(place, "seeding.epochs=1,2"), place.workspace)
    assert [cell.title for cell in cells] == [f"epochs={n}, seed {seed}" for n in (1, 2) for seed in (0, 1)]
    counts = count_stages(cells)
    each, prepared = len(SHARED) + len(TRAINED), len(SHARED)
    assert (counts.runs, counts.stages, counts.different) == (4, 4 * each, prepared + 4 * len(TRAINED))
    assert (counts.there, counts.to_make) == (prepared + len(TRAINED), 3 * len(TRAINED))
    assert "32 stages, 15 of them shared, so 17 to compute; 8 are there already: 9 to do" in str(counts)
    assert [step.label for step in preparation(cells)] == SHARED


def test_variants_that_differ_in_search_alone_share_their_training(place: Place) -> None:
    cells = plan_sweep(sweep_on(place, "decoding.width=2,3", seeds=3), place.workspace)
    made = [step.ref.uri for cell in cells if cell.plan for step in cell.plan.steps if step.label == "seed"]
    assert len(made) == 6 and len(set(made)) == 3


def test_preparation_has_every_stage_before_training_of_any_variant_once(place: Place) -> None:
    cells = plan_sweep(sweep_on(place, "text.min_count=1,2"), place.workspace)
    assert sorted(step.label for step in preparation(cells)) == sorted(
        [*SHARED, "prepare_text", "train_tagger", "extract_features"]
    )


def test_a_variant_that_cannot_be_planned_is_told_and_the_others_are_planned(place: Place) -> None:
    cells = plan_sweep(sweep_on(place, "captioner.hidden=8,0"), place.workspace)
    assert [cell.plan is None for cell in cells] == [False, False, True, True]
    assert "captioner.hidden: input should be greater than or equal to 1" in cells[2].why_not
    assert count_stages(cells).runs == 2


def test_if_no_variant_can_be_planned_the_mistake_is_the_sweeps(place: Place) -> None:
    with pytest.raises(UsageError, match=r"seeding.epocs: there is no such key; did you mean 'epochs'"):
        plan_sweep(sweep_on(place, "seeding.epocs=1,2"), place.workspace)


def test_runs_that_need_a_failed_stage_are_not_tried(place: Place) -> None:
    cells = plan_sweep(sweep_on(place, "decoding.width=2,3"), place.workspace)
    assert cells[0].plan and cells[2].plan
    seed = cells[0].plan.step("seed")
    assert seed
    left = [mark_impossible(cell, {seed.ref.uri: "the disk is full"}) for cell in cells]
    assert [cell.why_not for cell in left] == ["the disk is full", "", "the disk is full", ""]


def test_the_runs_of_a_sweep_have_names_of_their_own(place: Place) -> None:
    """Else gc would keep the last of them alone."""
    long = "captioner.embedding=8,16"
    names = {
        cell.plan.recipe.name
        for sweep in (sweep_on(place, long), sweep_on(place, long, settings=("seeding.captions_per_video=1",)))
        for cell in plan_sweep(sweep, place.workspace)
        if cell.plan
    }
    assert len(names) == 8 and all(len(name) <= 64 for name in names)


def toy_results() -> tuple[Sweep, list[SweepResult], dict[str, list[float]]]:
    """Two variants with three seeds, a third that failed once."""
    draw = np.random.default_rng(3)
    ciders = {
        "a": draw.uniform(0.2, 0.6, 3).tolist(),
        "b": draw.uniform(0.2, 0.6, 3).tolist(),
        "c": draw.uniform(0, 0.1, 2).tolist(),
    }
    sweep = Sweep("toy", "demo", tuple(Variant(name, (f"x={name}",)) for name in ciders), 3)
    results = [
        SweepResult(name, seed, "done", metrics={"CIDEr": value, "UniCap": 10 + seed}, seconds=60.0 * (seed + 1))
        for name, values in ciders.items()
        for seed, value in enumerate(values)
    ]
    return sweep, [*results, SweepResult("c", 2, "failed", "no | luck")], ciders


def test_the_table_has_numpys_means_and_sample_deviations() -> None:
    sweep, results, ciders = toy_results()
    rows = {row.variant: row for row in variant_rows(sweep, results)}
    for name, values in ciders.items():
        found = rows[name].metrics["CIDEr"]
        assert found.mean == pytest.approx(np.mean(values)) and found.n == len(values)
        assert found.std == pytest.approx(np.std(values, ddof=1))
        assert rows[name].seconds == pytest.approx(np.mean([60.0 * (n + 1) for n in range(len(values))]))
    assert [row.variant for row in rows.values() if row.best] == [max(ciders, key=lambda name: np.mean(ciders[name]))]
    assert [row.failed for row in rows.values()] == [0, 0, 1]


def test_differences_are_paired_by_seed() -> None:
    sweep, results, ciders = toy_results()
    first, second, third = variant_rows(sweep, results)
    change = np.array(ciders["b"]) - np.array(ciders["a"])
    assert first.differences == {}
    assert second.differences["CIDEr"].mean == pytest.approx(change.mean())
    assert second.differences["CIDEr"].std == pytest.approx(change.std(ddof=1))
    assert second.better == int((change > 0).sum())
    assert second.differences["UniCap"] == Spread(0.0, 0.0, 3)
    assert third.differences["CIDEr"].n == 2, "the failed seed has no pair"


def test_one_seed_has_no_deviation() -> None:
    assert Spread.of([0.5]) == Spread(0.5, None, 1) and Spread.of([0.5]).shown(100) == "50.0"
    assert Spread.of([0.5, 0.7]).shown(100, "+") == "+60.0±14.1"


def test_a_half_done_sweep_has_a_table() -> None:
    sweep, results, _ = toy_results()
    rows = variant_rows(sweep, results[3:4])
    assert [len(row.metrics) for row in rows] == [0, 2, 0] and rows[1].differences == {}


def test_the_files_of_a_sweep_agree(workspace: Workspace) -> None:
    sweep, results, ciders = toy_results()
    folder = write_results(sweep, workspace, results)
    whole = json.loads((folder / "sweep.json").read_text())
    assert whole["variants"][1]["figures"]["CIDEr"]["mean"] == pytest.approx(np.mean(ciders["b"]))
    assert whole["results"][8]["reason"] == "no | luck"
    lines = list(csv.DictReader((folder / "sweep.csv").open()))
    assert len(lines) == 9 and [float(line["CIDEr"]) for line in lines[:3]] == ciders["a"]
    assert lines[8]["state"] == "failed" and lines[8]["CIDEr"] == ""
    page = (folder / "sweep.md").read_text()
    table = [line for line in page.splitlines() if line.startswith("|")]
    assert len(table) == 5 and len({line.replace("\\|", "").count("|") for line in table}) == 1
    assert f"| {100 * np.mean(ciders['b']):.1f}±{100 * np.std(ciders['b'], ddof=1):.1f} |" in page
    assert "- failed: c, seed 2: no \\| luck" in page


def test_a_reason_is_told_once_for_all_its_runs() -> None:
    same = [SweepResult("a", seed, "failed", "no disk") for seed in (0, 1)] + [SweepResult("b", 0, "failed", "no disk")]
    assert failures([*same, SweepResult("b", 1, "failed", "no net")]) == ["a, seed 0, 1; b, seed 0: no disk", "b, seed 1: no net"]


@pytest.mark.parametrize("name", sorted(shipped_sweeps()))
def test_every_variant_of_a_shipped_sweep_is_a_recipe_of_its_own(name: str) -> None:
    sweep, read = find_sweep(name), read_sweep(shipped_sweeps()[name])
    assert name not in shipped_recipes(), "a name means one thing"
    assert len(read.description) > 40
    real_data = {"flickr8k", "msvd-captioners"}
    assert sweep.recipe.startswith("demo") != (name in real_data), "a paper's table can be tried without a download"
    recipes = [load_recipe(sweep.recipe, [*sweep.settings, *variant.settings]) for variant in sweep.variants]
    assert len({recipe.model_dump_json() for recipe in recipes}) == len(recipes)


def test_the_papers_figures_stand_beside_ours() -> None:
    for name, rows in ABLATIONS.items():
        named = {variant.name for variant in find_sweep(name).variants}
        assert rows.keys() <= named, f"{name}: the paper's rows {rows.keys() - named} are no variants"
        assert all(rows.values())
    sweep = find_sweep("g2l-table1", seeds=1)
    results = [SweepResult(variant.name, 0, "done", metrics={"CIDEr": 1.5, "METEOR": 0.2}) for variant in sweep.variants]
    rows = variant_rows(sweep, results)
    names = headings(rows)
    assert names == ["CIDEr", "paper CIDEr", "METEOR", "paper METEOR"]
    assert table_cells(rows[0], names)[:4] == ["150.0", "45.2", "20.0", "27.7"]


def test_a_setting_can_refer_to_what_the_recipe_says(tmp_path: Path) -> None:
    sweep = find_sweep("vre-table1", recipe="vre-msvd")
    pooled = next(variant for variant in sweep.variants if variant.name == "MeanPool")
    assert 'features: ["temporal"]' in pooled.settings[0] and "hidden: 512" in pooled.settings[0]
    path = tmp_path / "mine.yaml"
    path.write_text("recipe: demo\nvariants:\n  a: ['captioner.hidden=@captioner.nothing']\n")
    with pytest.raises(UsageError, match=r"captioner\.nothing, which the recipe demo does not have"):
        find_sweep(str(path))


def test_another_recipe_takes_the_place_of_a_sweeps_own(tmp_path: Path) -> None:
    own, other = find_sweep("glrg-table5"), find_sweep("glrg-table5", recipe="demo-vre", settings=["boosting.epochs=3"])
    assert own.recipe == "demo-glrg" and "boosting.epochs=20" in own.settings
    assert other.recipe == "demo-vre" and other.settings == ("boosting.epochs=3",), "what fits demo-glrg is left out"
    assert own.variants == other.variants and own.folder_name != other.folder_name
    assert find_sweep("glrg-table5", seeds=9).folder_name == own.folder_name, "more seeds add to what is there"


def written(folder: Path, **changes: Any) -> Path:
    values = {"recipe": str(TOY), "variants": {"long": ["seeding.epochs=2"], "short": []}, "seeds": 2} | changes
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


def test_a_sweep_file_of_ones_own_is_read(tmp_path: Path) -> None:
    sweep = find_sweep(str(written(tmp_path)))
    assert (sweep.name, sweep.seeds) == ("mine", 2)
    assert sweep.variants == (Variant("long", ("seeding.epochs=2",)), Variant("short"))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"variants": {}}, "variants: .*at least 1"),
        ({"sedes": 3}, "sedes: .*valid keys: description, recipe, set, variants, seeds"),
        ({"seeds": 0}, "seeds: .*greater than or equal to 1"),
        ({"variants": {"a": "seeding.epochs=1"}}, "variants.a: "),
    ],
)
def test_a_malformed_sweep_file_names_the_place(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        find_sweep(str(written(tmp_path, **changes)))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["glrg-tabel3"], "shipped sweeps: "),
        (["glrg-table3", "--grid", "seeding.epochs=1,2"], "--grid goes with a recipe"),
        (["demo", "--recipe", "demo-glrg", "--grid", "seeding.epochs=1"], "'demo' is no sweep"),
        (["demo", "--grid", "seeding.epochs"], "is not of the form key.subkey=a,b,c"),
        (["demo", "--seeds", "0"], "Invalid value"),
        (["nowhere.yaml"], "there is no recipe file nowhere.yaml"),
    ],
)
def test_wrong_usage_exits_with_2(longtake: Longtake, arguments: list[str], said: str) -> None:
    answer = longtake("sweep", *arguments)
    assert answer.code == 2 and said in " ".join(answer.err.replace("│", " ").split())


def test_a_dry_run_tells_of_every_run_what_no_other_makes(longtake: Longtake, place: Place) -> None:
    asked = ("sweep", TOY, "--data", place.data, "-w", place.workspace.root, "--grid", "seeding.epochs=1,2", "--seeds", "2")
    told = longtake(*asked, "--dry-run", "--json").json
    assert told["sharing"]["to_make"] == 3 * len(TRAINED)
    assert [run["to_do"] for run in told["runs"]] == [[], TRAINED, TRAINED, TRAINED]
    shown = longtake(*asked, "--dry-run")
    assert shown.code == 0 and "9 to do" in " ".join(shown.out.split())
    assert not (place.workspace.root / "sweeps").exists()


def test_a_sweep_whose_runs_are_all_there_starts_nothing(longtake: Longtake, place: Place) -> None:
    asked = ("sweep", TOY, "--data", place.data, "-w", place.workspace.root, "--seeds", "1")
    answer = longtake(*asked, "--json")
    assert answer.code == 0 and "starting Prefect" not in answer.err
    (row,) = answer.json["variants"]
    assert row["variant"] == "as it is" and row["best"] and math.isfinite(row["figures"]["CIDEr"]["mean"])
    records = len(list((place.workspace.root / "runs").glob("*/*.json")))
    assert longtake(*asked).code == 0
    assert len(list((place.workspace.root / "runs").glob("*/*.json"))) == records, "looking again is no new run"


def test_the_shipped_sweeps_are_listed(longtake: Longtake) -> None:
    assert all(name in longtake("sweeps").out for name in shipped_sweeps())
    listed = longtake("sweeps", "--json").json
    assert [row["name"] for row in listed] == sorted(shipped_sweeps())
