"""The report's stage alone: it shows the run's clips, scores, curves and problems."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.results import read_captions
from tasks.extraction.extractors import BackboneFeature
from tasks.extraction.pretrained import fetch_weights
from tasks.report import PageOptions, ReportOptions, report
from tasks.reporting.frame_images import read_frame_images
from tests.models.backbones import tiny_transformers
from tests.tasks.toy_run import EXTRACT, ToyRun


def test_the_page_shows_captions_frames_scores_stages_and_classes(
    toy: ToyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LONGTAKE_WEIGHTS", str(tmp_path / "weights"))
    net = f"hf:{tiny_transformers.save('vit', tmp_path / 'vit')}"
    animals = BackboneFeature(net=net, output="classes", sampling="clips")
    pooled = animals.model_copy(update={"output": "pooled"})
    fetch_weights([animals])
    extracted = toy.features(EXTRACT.model_copy(update={"features": {**EXTRACT.features, "animals": animals, "looks": pooled}}))
    recipe = {
        "name": "toy",
        "description": "a toy & a test",
        "dataset": {"name": "demo", "kind": "demo"},
        "features": {
            "scene": {"kind": "tagger", "weights": "trained"},
            "animals": animals.model_dump(),
            "looks": pooled.model_dump(),
        },
        "captioner": {"kind": "sa_lstm", "features": ["scene"]},
        "decoding": {"width": 2, "max_length": 20},
        "evaluation": {"split": "test"},
    }
    captions, scores = toy.captions(), toy.scores()
    job = toy.alone(
        report,
        PageOptions(shown=ReportOptions(clips=3, frames=4), recipe=recipe),
        toy.data,
        catalogue=toy.catalogue().ref,
        text=toy.text().ref,
        features=extracted.ref,
        seeded=(toy.seeded().ref,),
        captioners=(toy.seeded().ref,),
        captions=captions.ref,
        scores=scores.ref,
        tagger=toy.tagger().ref,
    )
    page = (job.folder / "report.html").read_text()
    assert page.count("data:image/webp;base64,") == 3 * 4 + 2 * 4  # and a pair of near twins
    kept = read_frame_images(job.folder)
    assert [len(pictures.frames) for pictures in kept.values()] == [len(p.times) for p in kept.values()] == [4, 4, 4]
    assert "a toy &amp; a test" in page
    shown = [row for row in read_captions(captions.folder) if row.video_id in page]
    assert len(shown) == 3 and all(stage in page for stage in ("train_tagger", "extract_features", "CIDEr"))
    assert "Only 4 videos were scored" in page
    assert "95 % interval" not in page and "R@1" in page and "CIDEr-D" not in page, "of four videos; one number, one name"
    assert "stages were done in this run" in page and ">reused<" not in page  # no run is on record
    assert page.count(">animals: ") == 3 and page.count("owl &lt;i&gt; ") == 3 and "looks: " not in page
