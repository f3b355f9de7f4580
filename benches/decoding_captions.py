"""Beam search and a training step of SA-LSTM at MSVD's sizes, against plain ways of doing the same, in one run on one thread.

    python benches/decoding_captions.py [--videos 670] [--words 4065]

The sizes are those of MSVD and its recipe: 670 test videos of 28 rows, 4,065 words that occur three times, captions of 7 words
and EOS, batches of 32 videos with 5 captions each.

Search: a beam of 5 over all videos, batched, against the style of public code: video by video, and each hypothesis with a
decoder step of its own. Both caption all videos and must find the same captions. The weights are random, so lengths spread
more than those of real captions: the mean is theirs.

Training: a step (forward, backward, clipping, Adam) against one of a tight baseline with torch's own nn.LSTM of the same
sizes: the same features and words, the same output layer at real words only. That baseline has no attention, which needs a
step at a time; a second one, with nn.LSTMCell and the same attention, tells what the attention costs and what our code does.

Times are processor time, on a busy machine the only ones to trust, the least of a few rounds. A run ends with an error if the
search is not 10 times faster or a training step takes more than 1.15 times that of nn.LSTM."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from models.captioner import Captioner
from models.captioners.lstm import SaLstmOptions, build_sa_lstm
from models.decoders.search import beam
from models.encoders.attention import masked_softmax
from models.losses.cross_entropy import CrossEntropy
from models.types import BOS, EOS, PAD, UNK, Batch

ROWS, SIZE, WIDTH, LONGEST = 28, 1536, 5, 20
EMBEDDING, HIDDEN, ATTENTION, DROPOUT = 468, 512, 256, 0.5
TRAIN_VIDEOS, TRAIN_CAPTIONS = 32, 5
MISSED: list[str] = []


def hold(held: bool, what: str) -> None:
    if not held:
        MISSED.append(what)


def seconds(run: Callable[[], object], rounds: int) -> float:
    """The least processor time of some rounds."""
    times = []
    for _ in range(rounds):
        began = time.process_time()
        run()
        times.append(time.process_time() - began)
    return min(times)


def fresh(words: int) -> Captioner:
    torch.manual_seed(0)
    options = SaLstmOptions(
        features=("frames",), embedding=EMBEDDING, hidden=HIDDEN, attention=ATTENTION, dropout=DROPOUT
    )
    return build_sa_lstm(options, {"frames": SIZE}, words)


def talkative(words: int) -> Captioner:
    """SA-LSTM with random weights that says 7 words and EOS on average: sharp distributions, and EOS at times."""
    captioner = fresh(words).eval()
    with torch.no_grad():
        captioner.decoder.embed.weight.mul_(10)  # type: ignore[attr-defined]
        captioner.decoder.predict.weight.mul_(50)  # type: ignore[attr-defined]
        captioner.decoder.predict.bias[EOS] += 11  # type: ignore[attr-defined]
    return captioner


def plain_beam(captioner: Captioner, frames: Tensor) -> tuple[float, list[int]]:
    """frames (T, D) of one video -> the best caption and its score, a step for each hypothesis, lists in Python."""
    memory = captioner.encode({"frames": frames[None]}, {"frames": torch.ones(1, len(frames), dtype=torch.bool)})
    running = [(0.0, [BOS], captioner.decoder.start(memory))]
    best: tuple[float, list[int]] = (-torch.inf, [])
    for t in range(LONGEST + 1):
        grown = []
        for score, said, state in running:
            logits, after, _ = captioner.decoder.step(torch.tensor(said[-1:]), state, memory)
            log_probs = torch.log_softmax(logits[0], -1)
            log_probs[[PAD, BOS, UNK]] = -torch.inf
            if t == LONGEST:
                grown.append((score + float(log_probs[EOS]), [*said, EOS], after))
                continue
            values, words = log_probs.topk(2 * WIDTH)
            for value, word in zip(values.tolist(), words.tolist(), strict=True):
                grown.append((score + value, [*said, word], after))
        grown.sort(key=lambda hypothesis: -hypothesis[0])
        for score, said, _ in grown[:WIDTH]:
            if said[-1] == EOS and score > best[0]:
                best = score, said[1:]
        running = [hypothesis for hypothesis in grown[: 2 * WIDTH] if hypothesis[1][-1] != EOS][:WIDTH]
        if not running or best[0] >= running[0][0]:
            break
    return best


@torch.no_grad()
def searching(videos: int, words: int, rounds: int) -> None:
    captioner = talkative(words)
    frames = torch.randn(videos, ROWS, SIZE, generator=torch.Generator().manual_seed(1))
    mask = torch.ones(videos, ROWS, dtype=torch.bool)

    def batched() -> list[list[int]]:
        found: list[list[int]] = []
        for start in range(0, videos, 64):
            part = slice(start, start + 64)
            decoded = beam(captioner, {"frames": frames[part]}, {"frames": mask[part]}, LONGEST, WIDTH)
            found += [[token for token in row[0] if token != PAD] for row in decoded.tokens.tolist()]
        return found

    found = batched()
    ours = seconds(batched, rounds)
    plain: list[list[int]] = []
    theirs = seconds(lambda: plain.extend(plain_beam(captioner, video)[1] for video in frames), 1)
    same = sum(a == b for a, b in zip(plain, found, strict=True))
    length = sum(map(len, found)) / len(found)
    print(f"beam {WIDTH}, {videos} videos of {ROWS} x {SIZE}, {words} words, {length:.1f} tokens a caption")
    print(f"  batched                              {ours:8.1f} s")
    print(f"  a step a hypothesis and a video      {theirs:8.1f} s")
    print(f"  ratio {theirs / ours:.1f}; {same} of {videos} captions are the same")
    hold(same == videos, f"{videos - same} captions differ")
    hold(theirs / ours >= 10, f"beam search is {theirs / ours:.1f} times faster, 10 wanted")


class Plain(nn.Module):
    """Words from torch's own LSTM over [word, mean of the rows], or from its LSTMCell with attention."""

    def __init__(self, words: int, attend: bool):
        super().__init__()
        self.attend = attend
        self.project = nn.Linear(SIZE, HIDDEN)
        self.embed = nn.Embedding(words, EMBEDDING, padding_idx=PAD)
        self.start = nn.Linear(HIDDEN, 2 * HIDDEN)
        self.lstm = nn.LSTM(EMBEDDING + HIDDEN, HIDDEN, batch_first=True)
        self.cell = nn.LSTMCell(EMBEDDING + HIDDEN, HIDDEN)
        self.key, self.query = nn.Linear(HIDDEN, ATTENTION), nn.Linear(HIDDEN, ATTENTION, bias=False)
        self.score = nn.Linear(ATTENTION, 1, bias=False)
        self.mix = nn.Linear(2 * HIDDEN + EMBEDDING, HIDDEN)
        self.predict = nn.Linear(HIDDEN, words)
        self.drop = nn.Dropout(DROPOUT)

    def forward(self, batch: Batch) -> Tensor:
        """B videos with N captions -> the mean cross-entropy of their real words."""
        assert batch.tokens is not None and batch.owner is not None
        mask = batch.masks["frames"]
        rows = self.drop(self.project(batch.features["frames"]))
        mean = ((rows * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True))[batch.owner]
        words = self.drop(self.embed(batch.tokens[:, :-1]))
        hidden, cell = torch.tanh(self.start(mean)).chunk(2, -1)
        if self.attend:
            states, contexts = [], []
            keys, rows, mask = self.key(rows)[batch.owner], rows[batch.owner], mask[batch.owner]
            for word in words.unbind(1):
                scores = self.score(torch.tanh(keys + self.query(hidden).unsqueeze(1))).squeeze(-1)
                context = torch.bmm(masked_softmax(scores, mask).unsqueeze(1), rows).squeeze(1)
                hidden, cell = self.cell(torch.cat([word, context], -1), (hidden, cell))
                states.append(hidden)
                contexts.append(context)
            said, seen = torch.stack(states, 1), torch.stack(contexts, 1)
        else:
            seen = mean.unsqueeze(1).expand(-1, words.shape[1], -1)
            said, _ = self.lstm(
                torch.cat([words, seen], -1), (hidden.unsqueeze(0).contiguous(), cell.unsqueeze(0).contiguous())
            )
        real = batch.tokens[:, 1:] != PAD
        mixed = torch.tanh(self.mix(torch.cat([self.drop(said[real]), seen[real], words[real]], -1)))
        return nn.functional.cross_entropy(self.predict(self.drop(mixed)), batch.tokens[:, 1:][real])


def training(words: int, rounds: int) -> None:
    draw = torch.Generator().manual_seed(2)
    N = TRAIN_VIDEOS * TRAIN_CAPTIONS
    tokens = torch.randint(4, words, (N, 12), generator=draw)
    lengths = torch.randint(4, 11, (N, 1), generator=draw) + 1  # the place of EOS: 4 to 10 words, 7 on average
    places = torch.arange(12)
    tokens = torch.where(places < lengths, tokens, torch.where(places == lengths, EOS, PAD))
    tokens[:, 0] = BOS
    batch = Batch(
        tuple(map(str, range(TRAIN_VIDEOS))),
        {"frames": torch.randn(TRAIN_VIDEOS, ROWS, SIZE, generator=draw)},
        {"frames": torch.ones(TRAIN_VIDEOS, ROWS, dtype=torch.bool)},
        tokens,
        torch.arange(TRAIN_VIDEOS).repeat_interleave(TRAIN_CAPTIONS),
    )
    ours, fused, cells = fresh(words), Plain(words, attend=False), Plain(words, attend=True)
    loss = CrossEntropy()
    rivals: list[tuple[str, nn.Module, Callable[[], Tensor]]] = [
        ("sa_lstm", ours, lambda: loss(ours, batch)),
        ("nn.LSTM, mean of the rows", fused, lambda: fused(batch)),
        ("nn.LSTMCell, the same attention", cells, lambda: cells(batch)),
    ]
    steps = [_stepping(model, forward) for _, model, forward in rivals]
    times = [float("inf")] * 3
    for _ in range(rounds + 1):  # in turns, so that a busy moment hits all
        for n, step in enumerate(steps):
            times[n] = min(times[n], seconds(step, 1))
    print(f"training step, {TRAIN_VIDEOS} videos x {TRAIN_CAPTIONS} captions, {words} words")
    for (name, _, _), took in zip(rivals, times, strict=True):
        print(f"  {name:<36} {1e3 * took:8.0f} ms  sa_lstm takes {times[0] / took:.2f} of it")
    hold(times[0] <= 1.15 * times[1], f"a training step takes {times[0] / times[1]:.2f} of nn.LSTM's, 1.15 wanted")


def _stepping(model: nn.Module, forward: Callable[[], Tensor]) -> Callable[[], None]:
    parameters = list(model.train().parameters())
    optimiser = torch.optim.Adam(parameters, 1e-4)

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        forward().backward()
        nn.utils.clip_grad_norm_(parameters, 5.0)
        optimiser.step()

    return step


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--videos", type=int, default=670, help="videos to be captioned")
    parser.add_argument("--words", type=int, default=4065, help="size of the vocabulary")
    parser.add_argument("--rounds", type=int, default=2, help="the least of so many rounds counts")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    searching(arguments.videos, arguments.words, arguments.rounds)
    training(arguments.words, arguments.rounds)
    for what in MISSED:
        print(f"missed: {what}")
    sys.exit(1 if MISSED else 0)
