"""`longtake score` with a live Java: a decimal-comma locale, spaces in paths, a read-only install, company, a kill -9, and every
figure of five thousand COCO images."""

from __future__ import annotations

import json
import os
import random
import signal
import time
import zipfile
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from flows.score import score_files
from models.metrics import meteor as longtake_meteor
from models.metrics.java import NoJava, find_java, packaged_jar
from models.metrics.meteor_statistics import meteor_of, summable
from tests.flows.cli.score_command import contents, finish, java_of, read_only_install, run_score, start_score
from tests.java_tokenizer import java_tokenize

GERMAN = "-Duser.language=de -Duser.country=DE -Dfile.encoding=ISO-8859-1"
COMMA_LOCALE = {"LC_ALL": "de_DE.UTF-8", "JAVA_TOOL_OPTIONS": GERMAN, "JDK_JAVA_OPTIONS": GERMAN, "_JAVA_OPTIONS": GERMAN}
SAID = {"1": "a man rides a horse", "2": "two dogs play", "3": "people in a café", "4": "nothing matches here", "5": ""}
TRUTH = {
    "1": ["A man is riding a horse.", "someone rides"],
    "2": ["dogs are playing", "two puppies play in the snow"],
    "3": ["people sit in a café", "a café"],
    "4": ["...", "dogs run quickly"],
    "5": ["a dog runs"],
}
METEOR = 0.31068898834173586  # of SAID, by pycocoevalcap's own Meteor in an English locale


@pytest.fixture(autouse=True)
def _java() -> None:
    try:
        find_java()
    except NoJava as error:
        pytest.skip(str(error))


def written(folder: Path, said: object = SAID, truth: object = TRUTH) -> tuple[Path, Path]:
    folder.mkdir(exist_ok=True)
    paths = folder / "what is said.json", folder / "what is true.json"
    for path, data in zip(paths, (said, truth), strict=True):
        path.write_text(json.dumps(data))
    return paths


def test_a_comma_locale_spaces_in_paths_and_a_read_only_install_change_no_figure(tmp_path: Path) -> None:
    said, truth = written(tmp_path / "ein Ordner, ü")
    place, temporary = read_only_install(tmp_path), tmp_path / "tem porary"
    temporary.mkdir()
    before = contents(place), contents(packaged_jar("meteor", "meteor-1.5.jar").parent)
    started = start_score(said, truth, PYTHONPATH=str(place), TMPDIR=str(temporary), **COMMA_LOCALE)
    _, command = java_of(started)
    (scored,) = finish(started)["scored"]
    assert str(place) in command
    assert scored["scores"]["METEOR"] == pytest.approx(METEOR, abs=1e-12) and "METEOR" not in scored["not_computed"]
    assert scored["intervals"] == {}, "of few items"
    assert (contents(place), contents(packaged_jar("meteor", "meteor-1.5.jar").parent)) == before
    assert list(temporary.iterdir()) == []


@pytest.mark.slow
def test_java_loads_while_the_files_are_read(tmp_path: Path) -> None:
    said, truth = written(tmp_path)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    started = start_score(said, pipe)
    java_of(started)  # though there is no reference yet
    with pipe.open("w") as file:
        file.write(truth.read_text())
    assert finish(started)["scored"][0]["scores"]["METEOR"] == pytest.approx(METEOR, abs=1e-12)


@pytest.mark.slow
def test_two_at_once_and_java_killed_midway_give_the_figures_of_one_alone(tmp_path: Path) -> None:
    draw = random.Random(5)
    words = [word for texts in TRUTH.values() for text in texts for word in text.lower().rstrip(".").split()]
    truth = {str(n): [" ".join(draw.choices(words, k=9)) for _ in range(5)] for n in range(3000)}
    said = {id: " ".join(draw.choices(words, k=9)) for id in truth}
    files = written(tmp_path / "many", said, truth)
    alone = run_score(*files)
    assert alone["scored"][0]["scores"]["METEOR"] > 0.1
    together = [start_score(*files), start_score(*files)]
    victim, _ = java_of(together[1])
    time.sleep(1 + 2 * draw.random())  # loading, or already scoring: both must be survived
    os.kill(victim, signal.SIGKILL)
    assert [finish(started) for started in together] == [alone, alone]


@pytest.mark.slow
def test_java_that_always_dies_leaves_every_other_score(tmp_path: Path) -> None:
    started = start_score(*written(tmp_path))
    killed = 0
    while killed < 2:
        victim, _ = java_of(started)
        os.kill(victim, signal.SIGKILL)
        killed += 1
        while Path(f"/proc/{victim}/cmdline").exists() and Path(f"/proc/{victim}/cmdline").read_bytes():
            time.sleep(0.01)
    (scored,) = finish(started)["scored"]
    assert "died twice" in scored["not_computed"]["METEOR"] and scored["scores"]["METEOR"] is None
    assert scored["scores"]["CIDEr"] > 0 and scored["intervals"]["BLEU-4"]


def coco_files(folder: Path, images: int, odd: bool) -> tuple[Path, Path]:
    """Annotations of real COCO images and captions that resemble theirs, more or less tidy."""
    with zipfile.ZipFile(packaged_jar("spice", "spice-1.0.jar")) as jar:
        annotations = json.loads(jar.read("coco/annotations/captions_val2014.json"))["annotations"]
    draw = random.Random(11)
    by_image: dict[int, list[dict]] = {}
    for row in annotations:
        by_image.setdefault(row["image_id"], []).append(row)
    chosen = draw.sample(sorted(id for id, rows in by_image.items() if len(rows) >= 5), images)
    results = []
    for n, id in enumerate(chosen):
        words = [word for word in by_image[id][n % 5]["caption"].split() if draw.random() > 0.2]
        text = " ".join(words + (by_image[chosen[n - 1]][0]["caption"].split()[-3:] if n % 2 else []))
        results.append({"image_id": id, "caption": _untidy(n, text, draw) if odd else text})
    rows = [row for id in chosen for row in by_image[id][:5]]
    folder.mkdir()
    paths = folder / "results.json", folder / "annotations.json"
    paths[0].write_text(json.dumps(results))
    paths[1].write_text(json.dumps({"images": [{"id": id} for id in chosen], "annotations": rows, "info": {}}))
    return paths


def _untidy(n: int, text: str, draw: random.Random) -> str:
    shuffled = text.split()
    draw.shuffle(shuffled)
    forms = (
        text.upper(),
        " ".join(shuffled),
        f"“{text}” - (maybe) 3.5% of 1,000!!!",
        text.replace(" and ", " &amp; ").replace(" a ", " a&nbsp;"),
        f"{text} \U0001f600\U0001f436 人が馬に乗る",
        f"{text}\u2028it’s the man's\r\ndog",
        f"<b>{text}</b> &lt;unk&gt; <unk> ||| SCORE",
        f"{text} " * 15,
        "" if n % 3 else "?!...",
        text.replace("e", "é", 2),
    )
    return forms[n // 4 % len(forms)] if n % 4 == 0 else text


@pytest.mark.slow
@pytest.mark.parametrize("odd", [False, True], ids=["tidy", "untidy"])
def test_every_figure_of_five_thousand_coco_images_equals_pycocoevalcaps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, odd: bool
) -> None:
    from pycocoevalcap.bleu.bleu import Bleu
    from pycocoevalcap.cider.cider import Cider
    from pycocoevalcap.meteor.meteor import Meteor
    from pycocoevalcap.rouge.rouge import Rouge

    monkeypatch.setenv("PATH", f"{find_java().parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Duser.language=en -Duser.country=US -Dfile.encoding=UTF-8")
    results, annotations = coco_files(tmp_path / "coco", 5000, odd)
    said = {str(row["image_id"]): row["caption"] for row in json.loads(results.read_text())}
    rows = [(str(row["image_id"]), row["caption"]) for row in json.loads(annotations.read_text())["annotations"]]
    truth: dict[str, list[str]] = {id: [] for id in said}
    for (id, _), words in zip(rows, java_tokenize([text for _, text in rows]), strict=True):
        truth[id].append(" ".join(words))
    one = {id: [" ".join(words)] for id, words in zip(said, java_tokenize(list(said.values())), strict=True)}
    bleu = Bleu(4).compute_score(truth, one, verbose=0)[0]
    theirs = dict(zip(("BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4"), bleu, strict=True)) | {
        name: scorer.compute_score(truth, one)[0]
        for name, scorer in (("ROUGE-L", Rouge()), ("CIDEr", Cider()), ("METEOR", Meteor()))
    }

    cut = written(tmp_path / "cut by Java", {id: texts[0] for id, texts in one.items()}, truth)
    (same_words,) = score_files(*cut, tokenized=True).scored
    (own_words,) = run_score(results, annotations)["scored"]
    assert same_words.items == own_words["items"] == 5000
    assert {name: same_words.scores[name] for name in theirs} == pytest.approx(theirs, abs=1e-9)
    assert {name: own_words["scores"][name] for name in theirs} == pytest.approx(theirs, abs=1e-4)


@pytest.mark.slow
def test_meteor_of_counts_equals_javas_for_any_set_of_captions(tmp_path: Path) -> None:
    results, annotations = coco_files(tmp_path / "coco", 300, odd=True)
    said = {str(row["image_id"]): row["caption"].lower() for row in json.loads(results.read_text())}
    truth: dict[str, list[str]] = {}
    for row in json.loads(annotations.read_text())["annotations"]:
        truth.setdefault(str(row["image_id"]), []).append(row["caption"].lower())
    for id in list(said)[::6]:
        said[id] = truth[id][0]
    ids, draw = sorted(said), random.Random(2)
    with closing(longtake_meteor.Meteor()) as meteor:
        whole = meteor.score(said, truth)
        row_of = {id: n for n, id in enumerate(ids)}
        assert meteor_of(whole.statistics) == pytest.approx(np.array([whole.per_video[id] for id in ids]), abs=1e-12)
        for _ in range(100):
            some = draw.sample(ids, draw.randint(1, 12))
            java = meteor.score({id: said[id] for id in some}, truth).corpus
            sums = summable(whole.statistics)[[row_of[id] for id in some]].sum(0, keepdims=True)
            assert meteor_of(sums).item() == pytest.approx(java, abs=1e-12)
