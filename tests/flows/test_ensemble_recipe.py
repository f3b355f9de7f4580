"""An ensemble in a recipe: a captioner a seed, each a cached step, and captions from the mean of their probabilities."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flows.recipe import check_recipe, load_recipe
from models.decoding.beam_search import search
from models.decoding.ensemble import Ensemble
from storage.errors import UsageError
from storage.results import read_captions, read_scores
from storage.text.references import References
from tasks.framework.feature_access import FeatureAccess
from tasks.training.loading import load_captioner
from tests.flows.conftest import Longtake
from tests.flows.toy_place import LABELS, TOY, Place, executed

TWO: dict[str, Any] = {"ensemble": {"seeds": [0, 7]}}
BOOSTING: dict[str, Any] = {"boosting": {"epochs": 1, "batch_size": 5, "samples": 2}}


def test_a_run_trains_each_seed_and_captions_by_all(place: Place) -> None:
    plan = place.plan(**TWO)
    assert plan.keys["seed[0]"] == place.plan().keys["seed"], "a seed that was trained before is not trained again"
    assert executed(plan) == ["seed[7]", *LABELS[-3:]]
    folders = {step.label: step.folder for step in plan.steps}
    references = References(folders["prepare_text"])
    vocabulary = references.vocabulary
    access = FeatureAccess.open(place.workspace, folders["extract_features"], ("scene",))
    nets = [load_captioner(folders[label] / "captioner.safetensors", access, vocabulary) for label in ("seed[0]", "seed[7]")]
    said = {row.video_id: row for row in read_captions(folders["caption"])}
    features, masks = access.read(list(said))
    with torch.inference_mode():
        wanted = search(Ensemble(nets).eval(), features, masks, plan.recipe.decoding)
        alone = search(nets[0].eval(), features, masks, plan.recipe.decoding)
    found = [row.log_prob for row in said.values()]
    assert found == pytest.approx(wanted.log_probs[:, 0].tolist(), abs=1e-4)
    assert found != pytest.approx(alone.log_probs[:, 0].tolist(), abs=1e-4)
    scores = read_scores(folders["evaluate"])
    assert scores["self_retrieval"]["R@10"] == 1 and scores["videos"] == len(said)
    assert not place.plan(**TWO).to_do


def test_own_files_are_captioned_by_all_and_the_report_is_found(place: Place, longtake: Longtake) -> None:
    plan = place.plan(**TWO)
    executed(plan)
    used = plan.step("caption")
    assert used is not None
    row = read_captions(used.folder)[0]
    answer = longtake("caption", place.data / "videos" / f"{row.video_id}.mp4", "-w", place.workspace.root, "--json")
    (found,) = answer.json["captions"]
    assert (found["caption"], found["log_prob"]) == (row.caption, row.log_prob)
    assert longtake("report", "-w", place.workspace.root, "--json").json["made"] is False


def test_each_is_boosted_from_its_own_seeding(untouched: Place) -> None:
    plan = untouched.plan(**TWO, **BOOSTING)
    labels = [step.label for step in plan.steps]
    assert labels[-7:] == ["seed[0]", "seed[7]", "boost[0]", "boost[7]", *LABELS[-3:]]
    keys = plan.keys
    for n in (0, 7):
        step = plan.step(f"boost[{n}]")
        assert step is not None and step.inputs["seeded"].key == keys[f"seed[{n}]"][1]
    assert keys["boost[0]"] == untouched.plan(**BOOSTING).keys["boost"]
    assert [step.label for step in untouched.plan(until="seed", **TWO, **BOOSTING).steps][-1] == "seed[7]"
    assert [step.label for step in untouched.plan(until="boost", **TWO, **BOOSTING).steps][-1] == "boost[7]"
    assert [step.label for step in untouched.plan(until="seed[0]", **TWO).steps][-1] == "seed[0]"


def test_status_shows_each_of_them(place: Place, longtake: Longtake) -> None:
    settings = ["--set", "ensemble.seeds=[0,7]", "--set", f"dataset.path={place.data}"]
    said = longtake("status", TOY, "--workspace", place.workspace.root, *settings, "--json")
    stages = {row["stage"]: row["state"] for row in said.json["stages"]}
    assert stages["seed[0]"] == "done" and stages["seed[7]"] != "done" and "seed" not in stages


@pytest.mark.parametrize(("seeds", "said"), [([3], "at least 2"), ([1, 1], "name each of"), ([0, -1], "greater than")])
def test_seeds_that_make_no_ensemble_are_refused(seeds: list[int], said: str) -> None:
    values = load_recipe(str(TOY)).model_dump(mode="json")
    with pytest.raises(UsageError, match=said):
        check_recipe(values | {"ensemble": {"seeds": seeds}}, "of the test")
