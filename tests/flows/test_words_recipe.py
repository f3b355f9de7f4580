"""A recipe whose captioner reads words that are predicted from features: its stages, its report, and captions of own files."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.caption import VideoCaptioner
from flows.recipe import load_recipe
from storage.errors import UsageError
from storage.results import read_captions
from tests.flows.toy_place import Place, executed

WORDS = {
    "words": {
        "net": {"features": ["scene"], "words": 8, "hidden": 8},
        "training": {"epochs": 2, "batch_size": 5, "learning_rate": 0.01},
    },
    "captioner": {"kind": "glrg", "features": ["words", "scene"], "projection": 8, "embedding": 8, "hidden": 8, "feed": "every"},
}


def test_words_are_learnt_predicted_read_reported_and_found_in_new_files(place: Place) -> None:
    plan = place.plan(**WORDS)
    assert executed(plan) == ["train_video_to_words", "predict_words", "seed", "caption", "evaluate", "report"]
    assert not place.plan(**WORDS).to_do
    step = plan.step("report")
    page = (step.folder / "report.html").read_text() if step else ""
    assert "Words from features: validation mAP" in page and "8 words, mAP" in page
    caption = plan.step("caption")
    assert caption is not None
    rows = {row.video_id: row.caption for row in read_captions(caption.folder)}
    file = place.clip("test")
    id = next(id for id, record in place.records.items() if Path(str(record.source)).name == file.name)
    assert VideoCaptioner.open(place.workspace.root)(str(file)) == rows[id]


def test_a_new_test_video_trains_no_net_for_words_again(place: Place) -> None:
    executed(place.plan(**WORDS))
    place.clip("test").unlink()
    stale = [step.label for step in place.plan(**WORDS).to_do]
    assert "train_video_to_words" not in stale and "seed" not in stale and "predict_words" in stale


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["words.net.features=[nothing]"], "words.net.features names 'nothing'"),
        (["words.net.features=[words]"], "the name 'words' is taken"),
        (
            ["words.net.features=[scene]", "features.words={kind: tagger, output: words, sampling: clips}"],
            "the name 'words' is taken",
        ),
    ],
)
def test_words_from_features_that_are_not_there_are_refused(settings: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        load_recipe("demo", settings)
