"""The log-mel spectrogram that VGGish hears, with its published constants, patch by patch so that a sound of any length
needs little memory."""

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

RATE = 16000
"""Samples per second that the constants below are meant for."""
WINDOW, HOP, FFT = 400, 160, 512
"""A spectrum spans 25 ms and one follows every 10 ms; its samples are filled up with zeros to the length of the FFT."""
MELS, LOWEST, HIGHEST = 64, 125.0, 7500.0
"""Triangular bands, evenly spaced on the mel scale between these frequencies in hertz."""
OFFSET = 0.01
"""Added before the logarithm, so that silence has one."""
FRAMES = 96
"""Spectra in one patch: 0.96 s, without overlap."""

_SPAN = (FRAMES - 1) * HOP + WINDOW  # samples that one patch covers
_STEP = FRAMES * HOP  # samples from one patch to the next


def patches(samples: NDArray[np.float32]) -> NDArray[np.float32]:
    """samples (S,) at 16 kHz, -1 to 1 -> (P, 96, 64). As published, a rest that fills no patch is left out; but a sound
    shorter than one patch is followed by silence up to one. No samples, no patches."""
    return np.concatenate([np.empty((0, FRAMES, MELS), np.float32), *stream_patches([samples])])


def stream_patches(blocks: Iterable[NDArray[np.float32]]) -> Iterator[NDArray[np.float32]]:
    """The same patches of a sound that comes in blocks (S,) of any length: (p, 96, 64) as soon as a block completes some.

    Every patch is computed alone, from the same buffer, so its bits do not depend on how the sound was cut."""
    held, filled, complete = np.zeros(_SPAN, np.float32), 0, False
    for block in blocks:
        ready, position = [], 0
        while position < len(block):
            taken = min(_SPAN - filled, len(block) - position)
            held[filled : filled + taken] = block[position : position + taken]
            filled, position = filled + taken, position + taken
            if filled == _SPAN:
                ready.append(_patch(held))
                held[: _SPAN - _STEP] = held[_STEP:]
                filled = _SPAN - _STEP
        if ready:
            complete = True
            yield np.stack(ready)
    if filled and not complete:
        held[filled:] = 0
        yield _patch(held)[None]


def stream_patches_at(blocks: Iterable[NDArray[np.float32]], times: NDArray[np.float64]) -> Iterator[NDArray[np.float32]]:
    """The patch of 0.96 s around each of these times (K,), in order: (p, 96, 64) as soon as a block completes some. Before and
    after the sound there is silence. No samples, no patches."""
    starts = np.rint(np.asarray(times) * RATE).astype(np.int64) - _SPAN // 2
    held, at, done, samples = np.zeros(0, np.float32), 0, 0, 0  # held[0] is sample number `at`
    for block in blocks:
        held, samples = np.concatenate([held, block]), samples + len(block)
        ready = []
        while done < len(starts) and starts[done] + _SPAN <= samples:
            ready.append(_patch(_window(held, starts[done] - at)))
            done += 1
        if ready:
            yield np.stack(ready)
        passed = samples if done == len(starts) else min(samples, max(at, int(starts[done])))
        held, at = held[passed - at :], passed
    if samples:
        for start in starts[done:]:
            yield _patch(_window(held, start - at))[None]


def _window(samples: NDArray[np.float32], start: int) -> NDArray[np.float32]:
    """`_SPAN` samples from a number on that may lie outside, where there is silence."""
    found = np.zeros(_SPAN, np.float32)
    low, high = max(0, start), min(len(samples), start + _SPAN)
    if low < high:
        found[low - start : high - start] = samples[low:high]
    return found


def _patch(samples: NDArray[np.float32]) -> NDArray[np.float32]:
    """samples (15600,) -> (96, 64); in double precision as the published code, rounded at the end."""
    windows = np.lib.stride_tricks.sliding_window_view(samples, WINDOW)[::HOP] * _HANN
    return np.log(np.abs(np.fft.rfft(windows, FFT)) @ _BANDS + OFFSET).astype(np.float32)


def _mel(hertz: NDArray[np.floating] | float) -> NDArray[np.floating]:
    return 1127.0 * np.log1p(np.asarray(hertz) / 700.0)


def _bands() -> NDArray[np.floating]:
    """(257, 64): how much of each frequency of the spectrum falls into each band. The slopes are straight in mel."""
    mels = _mel(np.arange(FFT // 2 + 1) * (RATE / FFT))[:, None]
    edges = np.linspace(_mel(LOWEST), _mel(HIGHEST), MELS + 2)
    low, middle, high = edges[:-2], edges[1:-1], edges[2:]
    return np.clip(np.minimum((mels - low) / (middle - low), (high - mels) / (high - middle)), 0.0, None)


# Periodic: the zero that would end the window belongs to its next period.
_HANN = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(WINDOW) / WINDOW)
_BANDS = _bands()
