"""Beam search and training steps at MSVD's sizes, against plain ways of doing the same, in one run on one thread.

    python benches/decoding_captions.py [--videos 670] [--words 4065]

The sizes are those of MSVD and its recipe: 670 test videos of 28 rows, 4,065 words, captions of 7 words and EOS, batches of 32
videos with 5 captions each.

Search: a beam of 5 over all videos, batched, against the style of public code: video by video, and each hypothesis with a
decoder step of its own. Both must find the same captions. The weights are random, so lengths spread more than real ones.

Training: a step (forward, backward, clipping, Adam) of SA-LSTM and of GL-RG against one of torch's own nn.LSTM of the same sizes:
the same features and words, the same output layer at real words only. For SA-LSTM that baseline has no attention, which needs a
step at a time; a second one, with nn.LSTMCell and the same attention, is its like.

Ratios are of processor time, on a busy machine the only one to trust, and of wall time beside it; each is the least of a few
rounds in turns. A run ends with an error if the search is not 10 times faster or a training step takes more than 1.15 times
that of nn.LSTM, in processor time."""

from collections.abc import Callable
from typing import Any

import torch
from measuring import arguments, best_of, exit_by_limits, require
from torch import Tensor, nn

from models.captioner import Captioner
from models.captioners.glrg import GlRgOptions, build_glrg
from models.captioners.lstm import SaLstmOptions, build_lstm
from models.decoding.beam_search import beam
from models.layers.attention import masked_softmax
from models.losses.cross_entropy import CrossEntropy
from models.types import BOS, EOS, PAD, UNK, Batch

ROWS, SIZE, WIDTH, LONGEST = 28, 1536, 5, 20
EMBEDDING, HIDDEN, ATTENTION, DROPOUT = 468, 512, 256, 0.5
TRAIN_VIDEOS, TRAIN_CAPTIONS = 32, 5
GRANULES = {"words": 300, "actions": 400, "objects": 1000}


def fresh(words: int) -> Captioner:
    torch.manual_seed(0)
    sizes = {"embedding": EMBEDDING, "hidden": HIDDEN, "attention": ATTENTION}
    return build_lstm(SaLstmOptions(features=("frames",), dropout=DROPOUT, **sizes), {"frames": SIZE}, words)


def talkative(words: int) -> Captioner:
    """SA-LSTM with random weights that says 7 words and EOS on average: sharp distributions, and EOS at times."""
    captioner = fresh(words).eval()
    decoder: Any = captioner.decoder
    with torch.no_grad():
        decoder.embed.weight.mul_(10)
        decoder.predict.weight.mul_(50)
        decoder.predict.bias[EOS] += 11
    return captioner


def plain_beam(captioner: Captioner, frames: Tensor) -> tuple[float, list[int]]:
    """frames (T, D) of one video -> the best caption and its score, a step for each hypothesis, lists in Python."""
    memory = captioner.encode({"frames": frames[None]}, {"frames": torch.ones(1, len(frames), dtype=torch.bool)})
    running = [(0.0, [BOS], captioner.decoder.start(memory))]
    best: tuple[float, list[int]] = (-torch.inf, [])
    for t in range(LONGEST + 1):
        grown = []
        for score, tokens, state in running:
            logits, after, _ = captioner.decoder.step(torch.tensor(tokens[-1:]), state, memory)
            log_probs = torch.log_softmax(logits[0], -1)
            log_probs[[PAD, BOS, UNK]] = -torch.inf
            if t == LONGEST:
                grown.append((score + float(log_probs[EOS]), [*tokens, EOS], after))
                continue
            values, words = log_probs.topk(2 * WIDTH)
            pairs = zip(values.tolist(), words.tolist(), strict=True)
            grown += [(score + value, [*tokens, word], after) for value, word in pairs]
        grown.sort(key=lambda hypothesis: -hypothesis[0])
        for score, tokens, _ in grown[:WIDTH]:
            if tokens[-1] == EOS and score > best[0]:
                best = score, tokens[1:]
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

    found, plain = batched(), list[list[int]]()

    def one_by_one() -> None:
        plain[:] = [plain_beam(captioner, video)[1] for video in frames]

    ours, theirs = best_of([batched, one_by_one], rounds)
    same = sum(a == b for a, b in zip(plain, found, strict=True))
    length = sum(map(len, found)) / len(found)
    print(f"beam {WIDTH}, {videos} videos of {ROWS} x {SIZE}, {words} words, {length:.1f} tokens a caption")
    print(f"  batched                              {ours.cpu:8.1f} s")
    print(f"  a step a hypothesis and a video      {theirs.cpu:8.1f} s")
    print(f"  ratio {theirs.over(ours)}; {same} of {videos} captions are the same")
    require(same == videos, f"{videos - same} captions differ")
    require(theirs.cpu >= 10 * ours.cpu, f"beam search is {theirs.cpu / ours.cpu:.1f} times faster, 10 wanted")


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
        """B videos with N captions -> the mean cross-entropy of their valid words."""
        assert batch.tokens is not None
        mask = batch.masks["frames"]
        rows = self.drop(self.project(batch.features["frames"]))
        mean = ((rows * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True))[batch.video_index]
        words = self.drop(self.embed(batch.tokens[:, :-1]))
        hidden, cell = torch.tanh(self.start(mean)).chunk(2, -1)
        if self.attend:
            hiddens, contexts = [], []
            keys, rows, mask = self.key(rows)[batch.video_index], rows[batch.video_index], mask[batch.video_index]
            for word in words.unbind(1):
                scores = self.score(torch.tanh(keys + self.query(hidden).unsqueeze(1))).squeeze(-1)
                context = torch.bmm(masked_softmax(scores, mask).unsqueeze(1), rows).squeeze(1)
                hidden, cell = self.cell(torch.cat([word, context], -1), (hidden, cell))
                hiddens.append(hidden)
                contexts.append(context)
            states, context = torch.stack(hiddens, 1), torch.stack(contexts, 1)
        else:
            context = mean.unsqueeze(1).expand(-1, words.shape[1], -1)
            start = (hidden.unsqueeze(0).contiguous(), cell.unsqueeze(0).contiguous())
            states, _ = self.lstm(torch.cat([words, context], -1), start)
        valid = batch.tokens[:, 1:] != PAD
        mixed = torch.tanh(self.mix(torch.cat([self.drop(states[valid]), context[valid], words[valid]], -1)))
        return nn.functional.cross_entropy(self.predict(self.drop(mixed)), batch.tokens[:, 1:][valid])


class PlainFed(nn.Module):
    """GL-RG by torch's own parts: three projections side by side are the first input of an nn.LSTM, then come the words."""

    def __init__(self, words: int):
        super().__init__()
        self.project = nn.ModuleDict({name: nn.Linear(size, HIDDEN) for name, size in GRANULES.items()})
        self.first = nn.Linear(len(GRANULES) * HIDDEN, HIDDEN)
        self.embed = nn.Embedding(words, HIDDEN, padding_idx=PAD)
        self.lstm = nn.LSTM(HIDDEN, HIDDEN, batch_first=True)
        self.predict = nn.Linear(HIDDEN, words)
        self.drop = nn.Dropout(DROPOUT)

    def forward(self, batch: Batch) -> Tensor:
        assert batch.tokens is not None
        fused = torch.cat([project(batch.features[name][:, 0]) for name, project in self.project.items()], -1)
        video = self.first(self.drop(fused))[batch.video_index].unsqueeze(1)
        words = self.drop(self.embed(batch.tokens[:, 1:-1]))
        states, _ = self.lstm(torch.cat([video, words], 1))
        valid = batch.tokens[:, 1:] != PAD
        return nn.functional.cross_entropy(self.predict(self.drop(states[valid])), batch.tokens[:, 1:][valid])


def captions(words: int, features: dict[str, Tensor]) -> Batch:
    """Captions of 4 to 10 words, 7 on average, of videos with the given features."""
    draw = torch.Generator().manual_seed(2)
    N = TRAIN_VIDEOS * TRAIN_CAPTIONS
    tokens = torch.randint(4, words, (N, 12), generator=draw)
    lengths = torch.randint(4, 11, (N, 1), generator=draw) + 1  # the place of EOS
    positions = torch.arange(12)
    tokens = torch.where(positions < lengths, tokens, torch.where(positions == lengths, EOS, PAD))
    tokens[:, 0] = BOS
    masks = {name: torch.ones(rows.shape[:2], dtype=torch.bool) for name, rows in features.items()}
    video_index = torch.arange(TRAIN_VIDEOS).repeat_interleave(TRAIN_CAPTIONS)
    return Batch(tuple(map(str, range(TRAIN_VIDEOS))), features, masks, tokens, video_index)


def training(words: int, rounds: int) -> None:
    draw = torch.Generator().manual_seed(3)
    frames = captions(words, {"frames": torch.randn(TRAIN_VIDEOS, ROWS, SIZE, generator=draw)})
    vectors = {name: torch.rand(TRAIN_VIDEOS, 1, size, generator=draw) for name, size in GRANULES.items()}
    granules = captions(words, vectors)
    sa_lstm, fused, cells = fresh(words), Plain(words, attend=False), Plain(words, attend=True)
    options = GlRgOptions(features=tuple(GRANULES), projection=HIDDEN, embedding=HIDDEN, hidden=HIDDEN, dropout=DROPOUT)
    glrg, fed = build_glrg(options, GRANULES, words), PlainFed(words)
    _race({"sa_lstm": sa_lstm, "nn.LSTM, mean of the rows": fused, "nn.LSTMCell, the same attention": cells}, frames, rounds)
    _race({"glrg": glrg, "nn.LSTM": fed}, granules, rounds)


def _race(rivals: dict[str, nn.Module], batch: Batch, rounds: int) -> None:
    """Training steps of the first against the others; the second is the one to hold."""
    steps, what = [_stepping(model, batch) for model in rivals.values()], next(iter(rivals))
    best_of(steps, 1)
    took = best_of(steps, 3 * rounds)
    print(f"training step of {what}, {TRAIN_VIDEOS} videos x {TRAIN_CAPTIONS} captions")
    for name, time_of in zip(rivals, took, strict=True):
        print(f"  {name:<36} {1e3 * time_of.cpu:8.0f} ms  {what} takes {took[0].over(time_of)} of it")
    ratio = took[0].cpu / took[1].cpu
    require(ratio <= 1.15, f"a training step of {what} takes {ratio:.2f} of nn.LSTM's, 1.15 wanted")


def _stepping(model: nn.Module, batch: Batch) -> Callable[[], None]:
    parameters = list(model.train().parameters())
    optimiser = torch.optim.Adam(parameters, 1e-4)

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        (CrossEntropy()(model, batch) if isinstance(model, Captioner) else model(batch)).backward()
        nn.utils.clip_grad_norm_(parameters, 5.0)
        optimiser.step()

    return step


if __name__ == "__main__":
    chosen = arguments(__doc__, videos=670, words=4065, rounds=2)
    torch.set_num_threads(1)
    searching(chosen.videos, chosen.words, chosen.rounds)
    training(chosen.words, chosen.rounds)
    exit_by_limits()
