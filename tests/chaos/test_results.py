"""The comparison of chaos: a changed byte, a lost row, an unfinished stage and a result too many are all reported."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from storage.features.s3_sync import RemoteFeatures
from storage.features.store import FeatureStore
from storage.records import ArtifactRef
from storage.workspace import Completion, Workspace
from tests.chaos.results import Results, differences, results, results_of_bucket, rows_of


def finished(root: Path, seconds: float = 1.0) -> Path:
    """A workspace with one finished stage and one feature store."""
    workspace = Workspace.open(root)
    folder = workspace.folder("seed", "abc")
    folder.mkdir(parents=True)
    (folder / "weights.bin").write_bytes(bytes(range(100)))
    ref = ArtifactRef("seed", "artifacts/seed/abc", "abc", 1, "seed v1")
    workspace.finish(Completion(ref, "seed", {"version": 1}, seconds, "2024-01-01T00:00:00Z"))
    add(root, "a", "b")
    return root


def add(root: Path, *videos: str) -> None:
    store = FeatureStore.create(root / "features" / "clips" / "look", provenance={"extractor_key": "net"})
    with store.writer() as writer:
        for n, video in enumerate(videos):
            writer.add(video, "k", np.full((3, 4), n))


def change_a_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def test_equal_results_are_equal_whenever_they_were_made(tmp_path: Path) -> None:
    one, two = finished(tmp_path / "one"), finished(tmp_path / "two", seconds=9.0)
    (two / "artifacts" / "seed" / "abc" / "weights.bin.tmp-123").write_bytes(b"left by a kill")
    assert len(results(one)) == 3 and differences(results(one), results(two)) == []


def test_a_changed_byte_of_a_file_is_reported(tmp_path: Path) -> None:
    place = finished(tmp_path / "w")
    before = results(place)
    change_a_byte(place / "artifacts" / "seed" / "abc" / "weights.bin")
    (line,) = differences(before, results(place))
    assert line.startswith("seed/abc/weights.bin: ") and " instead of " in line


def test_of_a_report_all_but_its_times_is_compared(tmp_path: Path) -> None:
    def page(name: str, when: str, caption: str) -> Results:
        place = finished(tmp_path / name)
        stages = f'<section id="stages">{when}</section>'
        html = f'<time datetime="{when}">{when}</time><p>{caption}</p>{stages}<section id="recipe">seed</section>'
        (place / "artifacts" / "seed" / "abc" / "report.html").write_text(html)
        return results(place)

    first = page("one", "now", "a dog")
    assert differences(first, page("two", "later", "a dog")) == []
    (line,) = differences(first, page("three", "now", "a cat"))
    assert line.startswith("seed/abc/report.html: ")


def test_a_changed_byte_of_a_feature_is_reported(tmp_path: Path) -> None:
    place = finished(tmp_path / "w")
    before = results(place)
    (chunk,) = (path for path in place.glob("features/clips/look/*/data/c*") if path.is_file())
    change_a_byte(chunk)
    (line,) = differences(before, results(place))
    assert line.startswith("features/clips/look: ") and "differ from their checksum" in line


def test_what_is_lost_unfinished_or_too_much_is_reported(tmp_path: Path) -> None:
    place = finished(tmp_path / "w")
    before = results(place)
    add(place, "c")
    (place / "artifacts" / "seed" / "abc" / "done.json").unlink()
    (place / "artifacts" / "seed" / "xyz").mkdir()
    lines = differences(before, results(place))
    assert [line.partition(":")[0] for line in lines] == ["features/clips/look", "seed/abc", "seed/abc/weights.bin", "seed/xyz"]
    assert "3 rows" in lines[0] and "not finished" in lines[1] and lines[2].endswith("lost") and "not in the" in lines[3]


def test_rows_are_counted_as_often_as_they_are_there(tmp_path: Path) -> None:
    place = finished(tmp_path / "w")
    add(place, "b")
    assert rows_of(place) == {("look", "a", "k"): 1, ("look", "b", "k"): 2}


def test_a_bucket_is_compared_too(tmp_path: Path) -> None:
    place, url = finished(tmp_path / "w"), f"file://{tmp_path}/bucket"
    empty: Results = {}
    RemoteFeatures(url).mirror("clips/look", place / "features" / "clips" / "look").push()
    there = results_of_bucket(url)
    assert there == {name: value for name, value in results(place).items() if name.startswith("features/")} != empty
