"""The kernels against pycocoevalcap's own scorers on the same words, to 1e-12."""

from __future__ import annotations

import os
import random
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from pycocoevalcap.bleu.bleu import Bleu
from pycocoevalcap.cider.cider import Cider
from pycocoevalcap.rouge.rouge import Rouge

from models.metrics.bleu import bleu_4, count_bleu
from models.metrics.cider import cider_d
from models.metrics.document_frequencies import DocumentFrequencies
from models.metrics.ngrams import NgramIndex
from models.metrics.rouge import rouge_l
from models.metrics.sentences import Sentences, VideoCaptions
from tests import ROOT

EXACT = 1e-12
SUBJECTS = ["a man", "a woman", "two dogs", "the cat", "a small boy", "someone", "a man and a woman", "people"]
DEEDS = ["is running", "are playing", "is cutting an onion", "plays the guitar", "is riding a horse", "rides a bike"]
PLACES = ["", "in a park", "on the street", "in the kitchen", "with a knife", "on the the stage", "in front of a crowd of people"]


def caption(draw: random.Random) -> str:
    return " ".join(f"{draw.choice(SUBJECTS)} {draw.choice(DEEDS)} {draw.choice(PLACES)}".split())


def compare(references: list[list[str]], said: list[str]) -> None:
    """One caption a video: every score, of sentences and of the corpus, as pycocoevalcap gives it."""
    truth = dict(enumerate(references))
    guess = {i: [text] for i, text in enumerate(said)}
    numbers: dict[str, int] = {}
    flat = Sentences.from_words([text.split() for video in references for text in video], numbers)
    videos = np.cumsum([0, *(len(video) for video in references)])
    index = NgramIndex.build(VideoCaptions(flat, videos))
    hypotheses, video_of = Sentences.from_words([text.split() for text in said], numbers), np.arange(len(said))

    cider = cider_d(index, hypotheses, video_of)
    np.testing.assert_allclose(cider, Cider().compute_score(truth, guess)[1], rtol=EXACT, atol=EXACT)
    np.testing.assert_allclose(
        rouge_l(index, hypotheses, video_of), Rouge().compute_score(truth, guess)[1], rtol=EXACT, atol=EXACT
    )
    bleu, bleu_each = Bleu(4).compute_score(truth, guess, verbose=0)
    counts = count_bleu(index, hypotheses, video_of)
    np.testing.assert_allclose(counts.sentences(), np.array(bleu_each).T, rtol=EXACT, atol=EXACT)
    np.testing.assert_allclose(counts.corpus(), bleu, rtol=EXACT, atol=EXACT)
    assert np.array_equal(bleu_4(index, hypotheses, video_of), counts.sentences()[:, 3])


@pytest.mark.parametrize("seed", range(4))
def test_real_looking_captions(seed: int) -> None:
    draw = random.Random(seed)
    references = [[caption(draw) for _ in range(draw.randrange(1, 25))] for _ in range(40)]
    compare(references, [caption(draw) for _ in references])


@pytest.mark.parametrize("seed", range(4))
def test_random_words_of_any_length(seed: int) -> None:
    draw = random.Random(seed)

    def words(longest: int) -> str:
        return " ".join(f"w{draw.randrange(12)}" for _ in range(draw.randrange(longest)))

    references = [[words(20) for _ in range(draw.randrange(1, 8))] for _ in range(30)]
    compare(references, [words(25) for _ in references])


def test_awkward_captions() -> None:
    draw = random.Random(9)
    references = [[caption(draw) for _ in range(5)] for _ in range(9)]
    long = " ".join(caption(draw).split()[0] + str(n % 83) for n in range(200))
    references[4] = [references[4][0]] * 300  # repeated captions
    references[5] = [long, references[5][0], ""]
    references[8] = [""]
    said = [
        "",
        "man",
        "unheard",
        references[3][2],  # one of the references itself
        references[4][0],
        " ".join(long.split()[7:] + ["end"] * 30),
        long,
        "the the the the the the the",
        "",
    ]
    compare(references, said)


@pytest.mark.parametrize("length", [63, 64, 65, 127, 128, 129, 200, 500])
def test_common_subsequences_longer_than_a_machine_word(length: int) -> None:
    draw = random.Random(length)
    references = [[" ".join(f"w{draw.randrange(9)}" for _ in range(length + extra)) for extra in (-40, 0, 3)]] * 2
    compare(references, [" ".join(f"w{draw.randrange(9)}" for _ in range(length)), references[0][1]])


def test_a_single_video_has_no_rare_words() -> None:
    compare([["a man runs", "a dog"]], ["a man runs"])


def test_many_hypotheses_of_a_video_in_any_order_are_scored_one_by_one() -> None:
    draw = np.random.default_rng(0)
    references = [[draw.integers(0, 9, 6).tolist() for _ in range(3)] for _ in range(5)]
    corpus = DocumentFrequencies.count(VideoCaptions.from_lists([*references, [[1, 2, 3]], [[20]]]))
    index = NgramIndex.build(references, corpus)
    said = [draw.integers(0, 9, n % 12).tolist() for n in range(40)]
    video_of = draw.integers(0, 5, 40)
    for score in (cider_d, bleu_4, rouge_l):
        together = score(index, Sentences.from_lists(said), video_of)
        alone = [score(index, Sentences.from_lists([s]), [v])[0] for s, v in zip(said, video_of, strict=True)]
        assert np.array_equal(together, alone)


def test_nothing_to_score_gives_nothing() -> None:
    index = NgramIndex.build([[[1, 2]]])
    for score in (cider_d, bleu_4, rouge_l):
        assert score(index, Sentences.from_lists([]), []).shape == (0,)


def test_corpus_document_frequencies_weigh_the_same_match_anew() -> None:
    references = [[[1, 2]], [[3, 4]]]
    corpus = DocumentFrequencies.count(VideoCaptions.from_lists([*references, [[1, 5]], [[6]]]))
    said, video_of = Sentences.from_lists([[1, 4], [1, 2]]), [0, 0]
    # "1" is in 2 of 4 videos, "4" in 1 of 4; unigrams match in "1" alone, the lengths are equal
    common, rare = np.log(4 / 2), np.log(4)
    expected = 10 / 4 * common**2 / (common**2 + rare**2)
    scores = cider_d(NgramIndex.build(references, corpus), said, video_of)
    assert scores.tolist() == pytest.approx([expected, 10 / 4 * 2], rel=1e-12)  # two words have no trigrams
    unweighted = cider_d(NgramIndex.build(references), said, video_of)
    assert unweighted[0] == pytest.approx(10 / 4 / 2, rel=1e-12)


CAPTIONS = st.lists(st.integers(0, 5), min_size=1, max_size=12)


def highest(reference: list[int], others: list[list[int]]) -> NDArray[np.float64]:
    """CIDEr-D, BLEU-4, ROUGE-L of the reference (first) and of others, (3, 1 + others)."""
    index = NgramIndex.build([[reference], [[9, 9, 9]]])
    said = Sentences.from_lists([reference, *others])
    video_of = np.zeros(len(said), np.int64)
    return np.array([score(index, said, video_of) for score in (cider_d, bleu_4, rouge_l)])


@settings(max_examples=60, deadline=None)
@given(CAPTIONS, st.lists(CAPTIONS, min_size=1, max_size=8))
def test_a_caption_equal_to_the_reference_scores_highest(reference: list[int], others: list[list[int]]) -> None:
    scores = highest(reference, others)
    ceiling = [10 * min(4, len(reference)) / 4, 1.0, 1.0]
    assert scores[[0, 2], 0] == pytest.approx([ceiling[0], ceiling[2]])
    for row in (0, 2) if len(reference) < 4 else (0, 1, 2):  # BLEU-4 of fewer than four words is its constants
        assert (scores[row, 1:] <= scores[row, 0] + 1e-8).all()


def test_kernels_work_where_nothing_can_be_written() -> None:
    code = (
        "from models.metrics.document_frequencies import profile\n"
        "from models.metrics.sentences import Sentences\n"
        "grams = profile(Sentences.from_lists([[1, 2, 1]]))\n"
        "print(grams.tf.tolist())"
    )
    # the one folder that may be used is the one that is not given
    nowhere = {"NUMBA_CACHE_LOCATOR_CLASSES": "UserProvidedCacheLocator", "NUMBA_CACHE_DIR": ""}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=os.environ | nowhere, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.stdout.strip() == "[2, 1, 1, 1, 1]", done.stderr
