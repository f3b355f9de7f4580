"""Recipes: all shipped ones load, settings mean what they look like, and every mistake names the place and the choices."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.recipe import REMOVED, RENAMED, Recipe, check_recipe, load_recipe, recorded_recipe, shipped_recipes
from storage.errors import UsageError
from storage.media.frame_sampling import Uniform
from storage.runs import RunRecord
from tests.flows.toy_place import TOY as TOY_PATH

TOY = str(TOY_PATH)


def mistake(*settings: str, name: str = TOY, kind: str | None = None) -> str:
    """What is said about a recipe with these settings."""
    with pytest.raises(UsageError) as caught:
        load_recipe(name, settings, kind=kind)
    return str(caught.value)


@pytest.mark.parametrize("name", sorted(shipped_recipes()))
def test_every_shipped_recipe_loads_under_its_name_and_says_what_it_is(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.name == name and len(recipe.description) > 40
    assert check_recipe(recipe.model_dump(mode="json"), "again") == recipe, "a run's record gives the same recipe"


def test_every_option_of_a_recipe_is_described() -> None:
    schema = Recipe.model_json_schema()
    sections = {"Recipe": schema, **schema["$defs"]}
    fields = {f"{section}.{name}": field for section, node in sections.items() for name, field in node["properties"].items()}
    assert len(fields) > 60
    assert [place for place, field in fields.items() if "description" not in field and not place.endswith(".kind")] == []


@pytest.mark.parametrize(
    ("setting", "place", "value"),
    [
        ("seeding.epochs=7", "seeding.epochs", 7),
        ("seeding.learning_rate=0.5", "seeding.learning_rate", 0.5),
        ("seeding.learning_rate=1e-3", "seeding.learning_rate", 0.001),
        ("decoding.allow_unk=true", "decoding.allow_unk", True),
        ("tagger.net.channels=[8, 16]", "tagger.net.channels", (8, 16)),
        ("evaluation.split=val", "evaluation.split", "val"),
        ("description=a=b", "description", "a=b"),
        (" seeding.epochs =7", "seeding.epochs", 7),
        ("report.clips=0", "report.clips", 0),
        ("runtime={decoders: 0, device: cpu}", "runtime.device", "cpu"),
    ],
)
def test_settings_mean_what_they_look_like(setting: str, place: str, value: Any) -> None:
    found: Any = load_recipe(TOY, [setting])
    for step in place.split("."):
        found = getattr(found, step)
    assert found == value and type(found) is type(value)


def test_a_setting_can_add_a_section_and_later_settings_win() -> None:
    settings = ["sampling.more.kind=uniform", "sampling.more.frames=9", "sampling.more.frames=5", "seeding.epochs=2"]
    recipe = load_recipe(TOY, settings)
    assert recipe.sampling["more"] == Uniform(frames=5) and recipe.seeding.epochs == 2
    assert load_recipe(TOY, ["dataset.path=/data", "dataset.path=null"]).dataset.path is None
    assert recipe.sampling["clips"] == load_recipe(TOY).sampling["clips"], "what was not set stays"


def test_data_and_kind_replace_the_data_set(tmp_path: Path) -> None:
    recipe = load_recipe(TOY, data=tmp_path, kind="msvd")
    assert (recipe.dataset.kind, recipe.dataset.path) == ("msvd", str(tmp_path))
    assert load_recipe(TOY, ["dataset.name=mine"], data=tmp_path).dataset.path == str(tmp_path)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("about=x", "about: is now called 'description'"),
        ("weighing.meteor=true", "weighing: is now called 'caption_weights'"),
        ("seeding.sampling.points=[[0, 1.0]]", "seeding.sampling: is now called 'scheduled_sampling'"),
        ("seeding.videos=3", "seeding.videos: is now called 'batch_size'"),
        ("tagger.training.average=0.9", "tagger.training.average: is now called 'ema_decay'"),
        (
            "features={x: {kind: backbone, net: resnet101, compiled: no}}",
            "features.x.compiled: there is no such key any more, since OpenVINO",
        ),
        ("runtime.slots=x", "runtime.slots: is now called 'concurrency_limit'"),
    ],
)
def test_a_key_of_another_name_than_before_says_the_new_one(setting: str, said: str) -> None:
    assert said in mistake(setting)


def test_a_key_that_is_no_more_says_so() -> None:
    assert "runtime.compile_training: there is no such key any more" in mistake("runtime.compile_training=true")


def test_every_renamed_key_is_one_and_a_record_with_the_old_ones_is_still_read() -> None:
    """Each new name is a key of its section, and the old one is none."""
    recipe = load_recipe("demo-gld").model_dump(mode="json")
    old = copy.deepcopy(recipe)
    moved = 0
    for place, new in RENAMED.items():
        *sections, key = place.split(".")
        found = old
        for section in sections:
            found = found[section]
        assert key not in found
        if new in found:
            found[key] = found.pop(new)
            moved += 1
    assert moved >= len(RENAMED) - 1  # the tagger has no captions of its own
    assert set(REMOVED) == {"features.*.compiled", "runtime.compile_training"}
    old["runtime"]["compile_training"] = False
    for feature in old["features"].values():
        feature["compiled"] = "no"
    run = RunRecord("1", "demo-gld", "demo", "/data", old, {}, (), "2024-01-01T00:00:00Z")
    assert recorded_recipe(run).model_dump(mode="json") == recipe


@pytest.mark.parametrize(
    ("setting", "place", "meant", "others"),
    [
        ("nmae=x", "nmae", "name", ["captioner", "seeding", "tagger"]),
        ("seeding.epocs=3", "seeding.epocs", "epochs", ["captions_per_video", "learning_rate"]),
        ("tagger.trainin.epochs=3", "tagger.trainin", "training", ["net", "sampling"]),
        ("tagger.net.wrods=3", "tagger.net.wrods", "words", ["channels", "frames"]),
        ("features.scene.smapling=clips", "features.scene.smapling", "sampling", ["kind", "weights"]),
        ("sampling.clips.lenght=3", "sampling.clips.lenght", "length", ["positions", "stride"]),
        ("captioner.hiden=3", "captioner.hiden", "hidden", ["attention", "join"]),
        ("dataset.nmae=x", "dataset.nmae", "name", ["path", "kind"]),
    ],
)
def test_an_unknown_key_lists_the_valid_ones(setting: str, place: str, meant: str, others: list[str]) -> None:
    said = mistake(setting)
    assert f" {place}: there is no such key; did you mean '{meant}'? valid keys here: " in said
    listed = said.rpartition("valid keys here: ")[2].split(", ")
    assert {meant, *others} <= set(listed)


def test_a_key_without_its_section_is_found_in_the_sections() -> None:
    assert "there is no such key; did you mean 'boosting.epochs' or 'key_frames.epochs' or 'seeding.epochs'? " in mistake(
        "epochs=5"
    )


def test_keys_of_another_kind_are_not_listed() -> None:
    assert "attention" not in mistake("captioner={kind: mp_lstm, features: [scene], attention: 3}").rpartition("here:")[2]


def test_every_problem_is_told_at_once() -> None:
    said = mistake("seeding.epocs=3", "captioner.kind=nope", "text.min_count=0")
    assert said.count("--set ") == len(said.splitlines()) == 3


@pytest.mark.parametrize(
    "setting", ["decoding.n_best=9", "captioner.kind=nope", "captioner.features=[sceen]", "seeding.epochs=0"]
)
def test_a_setting_is_blamed_and_not_the_recipe(setting: str) -> None:
    said = mistake("text.min_count=2", setting, "seeding.seed=1")
    assert said.startswith(f"--set {setting}: ") and "the recipe " not in said.partition("; ")[0]


@pytest.mark.parametrize(
    ("setting", "place", "kinds"),
    [
        ("captioner.kind=sa_lstmm", "captioner", ["sa_lstm", "mp_lstm"]),
        ("features.scene.kind=taggr", "features.scene", ["tagger", "backbone", "imported"]),
        ("sampling.clips.kind=x", "sampling.clips", ["uniform", "every", "clips", "keyframes"]),
        ("dataset.kind=mvsd", "dataset", ["msvd", "msrvtt", "activitynet", "coco", "folder", "demo"]),
    ],
)
def test_an_unknown_or_missing_kind_lists_the_kinds(setting: str, place: str, kinds: list[str]) -> None:
    said = mistake(setting)
    assert f"{place}.kind: there is no kind '{setting.partition('=')[2]}'; valid kinds: " in said
    assert all(f"'{kind}'" in said for kind in kinds)
    missing = mistake(f"{place}={{x: 1}}")
    assert f"{place}: say which kind" in missing and all(f"'{kind}'" in missing for kind in kinds)


def test_an_unknown_kind_of_data_lists_the_kinds() -> None:
    assert "dataset.kind: there is no kind 'youtube'; valid kinds: 'msvd'" in mistake(kind="youtube")


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("seeding.epochs=three", "seeding.epochs: input should be a valid integer"),
        ("seeding.epochs=0", "seeding.epochs: input should be greater than or equal to 1 (given: 0)"),
        ("seeding.seed=-1", "seeding.seed: input should be greater than or equal to 0 (given: -1)"),
        ("text.max_words=0", "text.max_words: input should be greater than or equal to 1 (given: 0)"),
        ("runtime.device=tpu", "runtime.device: input should be 'auto', 'cpu' or 'cuda' (given: 'tpu')"),
        ("name=../x", "name: string should match pattern '^[A-Za-z0-9]"),
        ("dataset.name=../x", "dataset.name: string should match pattern"),
        ("dataset=null", "dataset: must be a section with keys of its own (given: None)"),
        ("seeding=3", "seeding: must be a section with keys of its own (given: 3)"),
        ("features=[scene]", "features: must be a section with keys of its own (given: ['scene'])"),
        ("sampling.clips.stride=3", "sampling.clips: give exactly one of 'positions' and 'stride'"),
        ("decoding.n_best=9", "decoding: n_best 9 is more than the 2 hypotheses of width: raise width"),
        ("captioner.features=[sceen]", "captioner.features names 'sceen'; the recipe's features are scene"),
        ("features.scene.sampling=nope", "features.scene.sampling is 'nope'; the recipe's samplings are clips"),
        ("tagger=null", "features.scene is of kind 'tagger', but the recipe has no 'tagger' section; add 'tagger: {}'"),
        ("tagger.sampling=nope", "tagger.sampling 'nope' must be a sampling of kind 'clips' with length 3"),
        ("tagger.net.frames=5", "tagger.sampling 'clips' must be a sampling of kind 'clips' with length 5"),
        ("sampling.clips={kind: uniform}", "tagger.sampling 'clips' must be a sampling of kind 'clips' with length 3"),
    ],
)
def test_a_wrong_value_is_named_with_its_place(setting: str, said: str) -> None:
    assert f" {said}" in mistake(setting)


@pytest.mark.parametrize("setting", ["seeding", "", "=3", "   =3"])
def test_a_malformed_setting_shows_the_form(setting: str) -> None:
    assert mistake(setting) == f"--set {setting!r} is not of the form key.subkey=value, such as seeding.epochs=5"


def test_a_setting_below_a_value_and_one_that_is_no_yaml_are_refused() -> None:
    assert mistake("seeding.epochs.x=3") == "--set 'seeding.epochs.x=3': 'epochs' is a value, not a section"
    assert mistake("seeding.epochs=[1").startswith("--set 'seeding.epochs=[1': the value is not valid YAML")


def test_a_misspelt_name_gets_a_suggestion_and_the_list() -> None:
    said = mistake(name="demmo")
    assert said.startswith("there is no recipe 'demmo'; did you mean 'demo'? shipped recipes: ")
    assert "did you mean" not in mistake(name="xyzzy") and "demo" in mistake(name="xyzzy")


def test_a_file_that_is_not_there_and_a_folder_are_refused(tmp_path: Path) -> None:
    assert mistake(name=str(tmp_path / "mine.yaml")).startswith(f"there is no recipe file {tmp_path / 'mine.yaml'}; give a")
    (tmp_path / "folder.yaml").mkdir()
    assert "there is no recipe file" in mistake(name=str(tmp_path / "folder.yaml"))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"dataset: {kind: demo}\nfeatures: [1\ncaptioner: 2\n", "is not valid YAML.*line 3"),
        (b"dataset:\n\tkind: demo\n", "is not valid YAML.*line 2"),
        (b"\xff\xfe\x00", "is not valid YAML"),
        (b"!!python/object/apply:os.mkdir [sprung]\n", "is not valid YAML"),
        (b"", "must be a mapping of sections"),
        (b"- a\n- b\n", "must be a mapping of sections"),
        (b"description: nothing else\n", "dataset: is missing.*features: is missing"),
    ],
)
def test_a_malformed_file_is_named_with_the_line(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_bytes(content)
    message = mistake(name=str(path))
    assert message.startswith(f"the recipe {path} ")
    assert re.search(said, message, re.DOTALL)
    assert not Path("sprung").exists()


def test_a_file_is_called_by_its_name_unless_it_has_one(tmp_path: Path) -> None:
    values = yaml.safe_load(Path(TOY).read_text())
    del values["name"]
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(values))
    assert load_recipe(str(tmp_path / "mine.yaml")).name == "mine"
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({**values, "name": "yours"}))
    assert load_recipe(str(tmp_path / "mine.yaml")).name == "yours"
