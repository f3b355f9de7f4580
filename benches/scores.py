"""Scores on token ids against the public scorers, in one run: 64 videos x 5 samples x 20 references, one thread,
CPU time.

Rivals: pycocoevalcap's Cider, Bleu and Rouge on the same words, and a plain dict-based CIDEr-D with the document frequencies of a
corpus: once weighing a video's references whenever a caption is scored, as the reward code in the field does, once with all
weighed beforehand. Our index is built beforehand, as training does; pycocoevalcap's CIDEr counts document frequencies each time,
so there is a line with building the index too. Every line checks that the scores are equal to 1e-12. GLD's word rewards (eq. 10)
are timed against the plain reward. With `--large`: document frequencies of 600,000 captions and leave-one-out weights of 130,000.
With `--java`: METEOR in the background of self-retrieval (SA-LSTM, 60 videos x 20 references), as evaluation runs them, against
one after the other, and a second set of captions by the same Java against one of its own; these by the clock.

Floors that a run must hold, or it ends with an error: CIDEr-D 200 times a rival's, BLEU-4 and ROUGE-L 100 times, word rewards
within 4 times the plain CIDEr-D, 600,000 captions counted within a minute and 1.5 GB, 130,000 weighed within 20 s."""

import math
import resource
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from measuring import arguments, best_of, exit_by_limits, require, timed
from numpy.typing import NDArray
from pycocoevalcap.bleu.bleu import Bleu
from pycocoevalcap.cider.cider import Cider
from pycocoevalcap.rouge.rouge import Rouge

from models.captioners.lstm import SaLstmOptions
from models.metrics.bleu import bleu_4
from models.metrics.cider import cider_d
from models.metrics.corpus import CaptionScorer, ScoredCaptions
from models.metrics.document_frequencies import DocumentFrequencies
from models.metrics.leave_one_out import SCORES, weigh
from models.metrics.meteor import shared_meteor
from models.metrics.ngrams import NgramIndex
from models.metrics.rouge import rouge_l
from models.metrics.sentences import Sentences, VideoCaptions
from models.rewards.consensus import Consensus
from models.rewards.local_discriminative import DifferenceOptions, LocalDiscriminative, LocalOptions
from models.types import SPECIAL_TOKENS
from models.zoo import build_captioner
from storage.text.vocabulary import Vocabulary
from tasks.evaluation.self_retrieval import self_retrieval

VIDEOS, SAMPLES, REFERENCES, CORPUS = 64, 5, 20, 6_500
FIRST_WORD = len(SPECIAL_TOKENS)


def captions(draw: np.random.Generator, videos: int, each: int, words: int) -> list[list[list[int]]]:
    """Captions of a video share words and phrases, lengths are 5 to 15, words follow Zipf's law."""
    made, probabilities = [], 1 / np.arange(1, words + 1)
    pool = FIRST_WORD + draw.choice(words, size=1_000_000, p=probabilities / probabilities.sum())
    for _ in range(videos):
        theme = pool[draw.integers(0, len(pool), 25)]
        lengths, cuts = draw.integers(5, 16, each), draw.integers(0, 12, each)
        fresh = pool[draw.integers(0, len(pool), (each, 15))]
        chosen = np.where(draw.random((each, 15)) < 0.7, theme[(cuts[:, None] + np.arange(15)) % 25], fresh)
        made.append([row[:length].tolist() for row, length in zip(chosen, lengths, strict=True)])
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
    """The least CPU seconds of some runs."""
    return best_of([run], repeats)[0].cpu


def line(name: str, rival: float, ours: float, difference: float, floor: float = 0.0) -> None:
    print(f"{name:<44} {1e3 * rival:>9.1f} ms {1e3 * ours:>8.3f} ms {rival / ours:>7.0f} x   {difference:.1e}")
    require(difference < 1e-12, f"{name}: scores differ by {difference:.1e}")
    require(rival / ours >= floor, f"{name}: {rival / ours:.0f} x, {floor:.0f} x wanted")


def compare() -> None:
    draw = np.random.default_rng(0)
    corpus = captions(draw, CORPUS, REFERENCES, 10_000)
    truth = corpus[:VIDEOS]
    # a sample is a reference of its video with every fourth word or so replaced
    strange = draw.integers(FIRST_WORD, 10_000, (VIDEOS, SAMPLES))
    pairs = [(video, n) for video in range(VIDEOS) for n in range(SAMPLES)]
    flat = [[w if draw.random() < 0.75 else int(strange[v, n]) for w in truth[v][n]] for v, n in pairs]
    video_of = np.repeat(np.arange(VIDEOS), SAMPLES)
    hypotheses = Sentences.from_lists(flat)

    began = time.perf_counter()
    frequencies = DocumentFrequencies.count(VideoCaptions.from_lists(corpus))
    reward = NgramIndex.build(truth, frequencies)
    one_each = [truth[video] for video in video_of]  # pycocoevalcap takes one caption per item
    metric, items = NgramIndex.build(one_each), np.arange(len(flat))
    for warm in SCORES.values():
        warm(reward, hypotheses, video_of)
    took = time.perf_counter() - began
    print(f"document frequencies of {CORPUS * REFERENCES:,} captions, indices, compiling: {took:.1f} s")

    candidates = {i: [" ".join(map(str, words))] for i, words in enumerate(flat)}
    written = {i: [" ".join(map(str, words)) for words in video] for i, video in enumerate(one_each)}
    corpus_words = [[list(map(str, words)) for words in video] for video in corpus]
    plain = DictCiderD(corpus_words, corpus_words[:VIDEOS])
    texts = list(zip((list(map(str, words)) for words in flat), video_of.tolist(), strict=True))

    def by_dict(beforehand: bool) -> NDArray[np.float64]:
        return np.array([plain.score(words, video, beforehand) for words, video in texts])

    def gap(ours: NDArray[np.float64], theirs: object) -> float:
        return float(np.abs(ours - np.asarray(theirs)).max())

    columns = f"{'rival':>21} {'ours':>11} {'ratio':>9}   largest difference"
    print(f"{len(flat)} captions x {REFERENCES} references {columns}")
    ask = (reward, hypotheses, video_of)
    cider, our_cider = partial(Cider().compute_score, written, candidates), partial(cider_d, metric, hypotheses, items)
    rival, difference = best(cider, 2), gap(our_cider(), cider()[1])
    line("CIDEr, pycocoevalcap's Cider", rival, best(our_cider, 50), difference, 200)
    grouped = VideoCaptions.from_lists(one_each)
    with_index = best(lambda: cider_d(NgramIndex.build(grouped), hypotheses, items), 10)
    line("  the same, building the index as well", rival, with_index, difference)
    ours, difference = best(partial(cider_d, *ask), 50), gap(cider_d(*ask), by_dict(False))
    line("CIDEr-D, dicts, corpus document frequencies", best(lambda: by_dict(False), 2), ours, difference, 200)
    line("  the same, references weighed beforehand", best(lambda: by_dict(True), 3), ours, difference)
    bleu, our_bleu = partial(Bleu(4).compute_score, written, candidates, verbose=0), partial(bleu_4, *ask)
    line("BLEU-4, pycocoevalcap's Bleu", best(bleu, 3), best(our_bleu, 50), gap(our_bleu(), bleu()[1][3]), 100)
    rouge, our_rouge = partial(Rouge().compute_score, written, candidates), partial(rouge_l, *ask)
    line("ROUGE-L, pycocoevalcap's Rouge", best(rouge, 3), best(our_rouge, 50), gap(our_rouge(), rouge()[1]), 100)
    word_level(reward, flat, video_of)


def word_level(index: NgramIndex, sentences: list[list[int]], video_of: NDArray[np.int64]) -> None:
    """Rewards as training calls them, on padded tensors."""
    samples = torch.zeros(len(sentences), max(map(len, sentences)), dtype=torch.int64)
    for row, words in enumerate(sentences):
        samples[row, : len(words)] = torch.tensor(words)
    videos = torch.from_numpy(video_of)
    rewards: dict[str, Consensus | LocalDiscriminative] = {
        "plain CIDEr-D": Consensus(index, eos=False),
        "eq. 10": LocalDiscriminative(index, LocalOptions(), eos=False),
        "LD-Diff": LocalDiscriminative(index, DifferenceOptions(), eos=False),
    }
    times = {name: best(partial(reward.__call__, samples, videos), 50) for name, reward in rewards.items()}
    for name, seconds in times.items():
        print(f"reward of samples, {name:<24} {1e3 * seconds:>24.3f} ms {seconds / times['plain CIDEr-D']:>7.1f} x")
    ratio = times["eq. 10"] / times["plain CIDEr-D"]
    require(ratio <= 4, f"word rewards take {ratio:.1f} times the plain CIDEr-D")


def large() -> None:
    references = VideoCaptions.from_lists(captions(np.random.default_rng(2), 120_000, 5, 30_000))
    before, began = peak(), time.perf_counter()
    grams = len(DocumentFrequencies.count(references).keys)
    seconds = time.perf_counter() - began
    print(f"document frequencies of {len(references.sentences):,} captions: {seconds:.1f} s, {grams:,} n-grams;", end=" ")
    print(f"peak of the process {peak():.0f} MB ({before:.0f} MB before)")
    require(seconds < 60 and peak() < 1500, f"document frequencies: {seconds:.0f} s, {peak():.0f} MB")
    references = VideoCaptions.from_lists(captions(np.random.default_rng(1), 6_500, 20, 10_000))
    frequencies = DocumentFrequencies.count(references)
    for score in SCORES:
        began = time.perf_counter()
        weigh(references, frequencies, [score])
        seconds = time.perf_counter() - began
        print(f"leave-one-out {score} of {len(references.sentences):,} captions: {seconds:.2f} s, index included")
        require(seconds < 20, f"weights by {score}: {seconds:.0f} s")


def java() -> None:
    written = [
        [" ".join(f"w{n}" for n in words) for words in video] for video in captions(np.random.default_rng(3), 60, 21, 5_000)
    ]
    said = {f"v{n:03}": video[0] for n, video in enumerate(written)}
    truth = {id: video[1:] for id, video in zip(said, written, strict=True)}
    vocabulary = Vocabulary((*SPECIAL_TOKENS, *sorted({word for text in said.values() for word in text.split()})))
    captioner = build_captioner(SaLstmOptions(features=("look",)), {"look": 512}, len(vocabulary)).eval()

    def read(ids: Sequence[str], device: str) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        return {"look": torch.ones(len(ids), 16, 512)}, {"look": torch.ones(len(ids), 16, dtype=torch.bool)}

    def score(first: Callable[[], object] = lambda: None) -> ScoredCaptions:
        with CaptionScorer(meteor=True, spice_jars=None) as scorer:
            pending = scorer.score(said, truth)
            first()
            return pending()

    def twice() -> None:
        with shared_meteor():
            require(score().scores == score().scores, "the same captions have other scores the second time")

    retrieve = partial(self_retrieval, captioner, read, vocabulary, said, "cpu")
    alone, after, beside, both = (timed(work).wall for work in (score, retrieve, lambda: score(retrieve), twice))
    print(f"METEOR and the others {alone:.1f} s, self-retrieval {after:.1f} s, at once {beside:.1f} s", end="")
    print(
        f" ({beside / (alone + after):.2f} of one after the other); two sets {both:.1f} s ({both / alone / 2:.2f} of two Javas)"
    )


def peak() -> float:
    """The most memory that this process ever had, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    chosen = arguments(__doc__, large=False, java=False)
    if chosen.large:  # first, so that the peak of memory is its own
        large()
    compare()
    if chosen.java:
        java()
    exit_by_limits()
