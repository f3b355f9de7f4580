"""Scores on token ids against the public scorers, in one run: 64 videos x 5 samples x 20 references, one thread.

Rivals: pycocoevalcap's Cider, Bleu and Rouge on the same words, and a plain dict-based CIDEr-D with the document
frequencies of a corpus: once weighing a video's references whenever a caption is scored, as the reward code in the field
does, once with all references weighed beforehand, the best that dictionaries can do. Our index is built beforehand, as
training does; pycocoevalcap's CIDEr counts document frequencies each time, so there is a line with building the index too.
Every line checks that the scores are equal to 1e-12. With `--large`: document frequencies of 600,000 captions and
leave-one-out weights of 130,000."""

from __future__ import annotations

import argparse
import math
import resource
import time
from collections import Counter
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from pycocoevalcap.bleu.bleu import Bleu
from pycocoevalcap.cider.cider import Cider
from pycocoevalcap.rouge.rouge import Rouge

from models.scores.bleu import bleu_4
from models.scores.cider import cider_d
from models.scores.document_frequencies import DocumentFrequencies
from models.scores.leave_one_out import SCORES, leave_one_out
from models.scores.ngrams import NgramIndex
from models.scores.rouge import rouge_l
from models.scores.sentences import Sentences, VideoCaptions

VIDEOS, SAMPLES, REFERENCES, CORPUS = 64, 5, 20, 6_500


def captions(draw: np.random.Generator, videos: int, each: int, words: int) -> list[list[list[int]]]:
    """Captions of a video share words and phrases, lengths are 5 to 15, words follow Zipf's law."""
    made = []
    chances = 1 / np.arange(1, words + 1)
    pool = draw.choice(words, size=1_000_000, p=chances / chances.sum())
    for _ in range(videos):
        theme = pool[draw.integers(0, len(pool), 25)]
        lengths = draw.integers(5, 16, each)
        cuts = draw.integers(0, 12, each)
        fresh = pool[draw.integers(0, len(pool), (each, 15))]
        told = np.where(draw.random((each, 15)) < 0.7, theme[(cuts[:, None] + np.arange(15)) % 25], fresh)
        made.append([row[:length].tolist() for row, length in zip(told, lengths, strict=True)])
    return made


class DictCiderD:
    """CIDEr-D with dictionaries of tuples and the document frequencies of a corpus."""

    def __init__(self, corpus: list[list[list[str]]], references: list[list[list[str]]]) -> None:
        seen = Counter(gram for video in corpus for gram in {g for words in video for g in self.count(words)})
        self.idf = {gram: math.log(len(corpus)) - math.log(df) for gram, df in seen.items()}
        self.rarest = math.log(len(corpus))
        self.references = references
        self.cooked = [[self.cook(words) for words in video] for video in references]

    @staticmethod
    def count(words: list[str]) -> Counter[tuple[str, ...]]:
        return Counter(tuple(words[i : i + n]) for n in range(1, 5) for i in range(len(words) - n + 1))

    def cook(self, words: list[str]) -> tuple[list[dict[tuple[str, ...], float]], list[float], int]:
        vectors: list[dict[tuple[str, ...], float]] = [{}, {}, {}, {}]
        for gram, tf in self.count(words).items():
            vectors[len(gram) - 1][gram] = tf * self.idf.get(gram, self.rarest)
        return vectors, [math.sqrt(sum(w * w for w in v.values())) for v in vectors], max(0, len(words) - 1)

    def score(self, words: list[str], video: int, beforehand: bool) -> float:
        vectors, norms, length = self.cook(words)
        references = self.cooked[video] if beforehand else [self.cook(words) for words in self.references[video]]
        total = 0.0
        for their_vectors, their_norms, their_length in references:
            penalty = math.exp(-((length - their_length) ** 2) / 72)
            for mine, theirs, norm, their_norm in zip(vectors, their_vectors, norms, their_norms, strict=True):
                if norm and their_norm:
                    dot = sum(min(w, theirs[gram]) * theirs[gram] for gram, w in mine.items() if gram in theirs)
                    total += penalty * dot / (norm * their_norm)
        return 10 * total / 4 / len(references)


def best(run: Callable[[], object], repeats: int) -> float:
    """The least seconds of some runs."""
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return min(times)


def line(name: str, rival: float, ours: float, difference: float) -> None:
    figures = f"{1e3 * rival:>9.1f} ms {1e3 * ours:>8.3f} ms {rival / ours:>7.0f} x   {difference:.1e}"
    print(f"{name:<44} {figures}")
    assert difference < 1e-12


def compare() -> None:
    draw = np.random.default_rng(0)
    corpus = captions(draw, CORPUS, REFERENCES, 10_000)
    truth = corpus[:VIDEOS]
    # a sample is a reference of its video with every fourth word or so replaced
    strange = draw.integers(0, 10_000, (VIDEOS, SAMPLES))
    said = [
        [[w if draw.random() < 0.75 else int(strange[video, n]) for w in truth[video][n]] for n in range(SAMPLES)]
        for video in range(VIDEOS)
    ]
    video_of = np.repeat(np.arange(VIDEOS), SAMPLES)
    flat = [words for video in said for words in video]
    hypotheses = Sentences.from_lists(flat)

    began = time.perf_counter()
    frequencies = DocumentFrequencies.count(VideoCaptions.from_lists(corpus))
    reward = NgramIndex.build(truth, frequencies)
    one_each = [truth[video] for video in video_of]  # pycocoevalcap takes one caption an item
    metric, items = NgramIndex.build(one_each), np.arange(len(flat))
    for warm in SCORES.values():
        warm(reward, hypotheses, video_of)
    print(
        f"document frequencies of {CORPUS * REFERENCES:,} captions, indices, compiling: {time.perf_counter() - began:.1f} s"
    )

    spoken = {i: [" ".join(map(str, words))] for i, words in enumerate(flat)}
    written = {i: [" ".join(map(str, words)) for words in video] for i, video in enumerate(one_each)}
    plain = DictCiderD(
        [[list(map(str, w)) for w in v] for v in corpus], [[list(map(str, w)) for w in v] for v in truth]
    )
    texts = [list(map(str, words)) for words in flat]

    def by_dict(beforehand: bool) -> NDArray[np.float64]:
        return np.array(
            [plain.score(words, int(video), beforehand) for words, video in zip(texts, video_of, strict=True)]
        )

    def gap(ours: NDArray[np.float64], theirs: object) -> float:
        return float(np.abs(ours - np.asarray(theirs)).max())

    print(
        f"{len(flat)} captions x {REFERENCES} references {'rival':>21} {'ours':>11} {'ratio':>9}   largest difference"
    )
    cider = Cider()
    rival = best(lambda: cider.compute_score(written, spoken), 2)
    difference = gap(cider_d(metric, hypotheses, items), cider.compute_score(written, spoken)[1])
    line("CIDEr, pycocoevalcap's Cider", rival, best(lambda: cider_d(metric, hypotheses, items), 50), difference)
    grouped = VideoCaptions.from_lists(one_each)
    with_index = best(lambda: cider_d(NgramIndex.build(grouped), hypotheses, items), 10)
    line("  the same, building the index as well", rival, with_index, difference)
    ours = best(lambda: cider_d(reward, hypotheses, video_of), 50)
    difference = gap(cider_d(reward, hypotheses, video_of), by_dict(False))
    line("CIDEr-D, dicts, corpus document frequencies", best(lambda: by_dict(False), 2), ours, difference)
    line("  the same, references weighed beforehand", best(lambda: by_dict(True), 3), ours, difference)
    bleu = Bleu(4)
    line("BLEU-4, pycocoevalcap's Bleu", best(lambda: bleu.compute_score(written, spoken, verbose=0), 3),
         best(lambda: bleu_4(reward, hypotheses, video_of), 50),
         gap(bleu_4(reward, hypotheses, video_of), bleu.compute_score(written, spoken, verbose=0)[1][3]))  # fmt: skip
    rouge = Rouge()
    line("ROUGE-L, pycocoevalcap's Rouge", best(lambda: rouge.compute_score(written, spoken), 3),
         best(lambda: rouge_l(reward, hypotheses, video_of), 50),
         gap(rouge_l(reward, hypotheses, video_of), rouge.compute_score(written, spoken)[1]))  # fmt: skip


def large() -> None:
    references = VideoCaptions.from_lists(captions(np.random.default_rng(1), 6_500, 20, 10_000))
    began = time.perf_counter()
    index = NgramIndex.build(references)
    print(f"index of {len(references.sentences):,} captions: {time.perf_counter() - began:.2f} s")
    for score in SCORES:
        began = time.perf_counter()
        leave_one_out(index, score)
        print(f"leave-one-out {score}: {time.perf_counter() - began:.2f} s")
    del index
    references = VideoCaptions.from_lists(captions(np.random.default_rng(2), 120_000, 5, 30_000))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    frequencies = DocumentFrequencies.count(references)
    seconds = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(
        f"document frequencies of {len(references.sentences):,} captions: {seconds:.1f} s, {len(frequencies.keys):,} n-grams; "
        f"peak of the process {after / 1024:.0f} MB ({before / 1024:.0f} MB before)"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--large", action="store_true", help="also the times of whole training splits")
    arguments = parser.parse_args()
    compare()
    if arguments.large:
        large()
