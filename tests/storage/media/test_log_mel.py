"""The log-mel front end: equal to its definition, and the same bits however a sound is cut into blocks."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.media.log_mel import patches, stream_patches, stream_patches_at

SPAN, STEP = 15600, 15360


def sound(count: int, seed: int = 0) -> np.ndarray:
    """Tones that glide and fade, with some noise."""
    moments = np.arange(count) / 16000
    glide = np.sin(2 * np.pi * (300 * moments + 800 * moments**2)) * np.cos(3 * moments)
    noise = np.random.default_rng(seed).normal(0, 0.05, count)
    return (0.4 * glide + noise).astype(np.float32)


def by_definition(samples: np.ndarray) -> np.ndarray:
    """(S,) -> (frames, 64): a sum for each frequency, a triangle for each band, one frame after the other."""
    count = 1 + (len(samples) - 400) // 160
    n, k = np.arange(400), np.arange(257)
    fourier = np.exp(-2j * np.pi * np.outer(n, k) / 512)
    mel_of_bin = 2595 * np.log10(1 + k * 16000 / 512 / 700)  # the same scale, up to a factor
    edges = 2595 * np.log10(1 + np.array([125.0, 7500.0]) / 700)
    corner = [edges[0] + (edges[1] - edges[0]) * i / 65 for i in range(66)]
    rows = np.empty((count, 64))
    for frame in range(count):
        window = samples[frame * 160 : frame * 160 + 400].astype(np.float64) * np.sin(np.pi * n / 400) ** 2
        magnitude = np.abs(window @ fourier)
        for band in range(64):
            weights = np.interp(mel_of_bin, corner[band : band + 3], [0.0, 1.0, 0.0])
            rows[frame, band] = np.log(np.sum(magnitude * weights) + 0.01)
    return rows


def test_patches_equal_the_definition() -> None:
    samples = sound(SPAN + STEP + 3000)
    found = patches(samples)
    assert found.shape == (2, 96, 64) and found.dtype == np.float32
    expected = by_definition(samples)[: 2 * 96].reshape(2, 96, 64)
    assert np.abs(found - expected).max() < 1e-5
    assert np.ptp(expected) > 3  # the sound is not just silence


def test_a_tone_sits_in_its_band_and_silence_is_the_offset() -> None:
    tone = np.sin(2 * np.pi * 1000 * np.arange(SPAN) / 16000).astype(np.float32)
    mels = 1127 * np.log(1 + np.array([125.0, 1000.0, 7500.0]) / 700)
    band = (mels[1] - mels[0]) / (mels[2] - mels[0]) * 65 - 1
    assert abs(float(patches(tone)[0].mean(axis=0).argmax()) - band) <= 1
    assert np.allclose(patches(np.zeros(SPAN, np.float32)), np.log(0.01))


@pytest.mark.parametrize(
    ("count", "expected"),
    [(0, 0), (1, 1), (SPAN - 1, 1), (SPAN, 1), (SPAN + STEP - 1, 1), (SPAN + STEP, 2), (SPAN + 2 * STEP, 3)],
)
def test_how_many_patches_a_sound_has(count: int, expected: int) -> None:
    assert patches(sound(count)).shape == (expected, 96, 64)


def test_a_short_sound_is_followed_by_silence() -> None:
    short = sound(5000)
    assert np.array_equal(patches(short), patches(np.pad(short, (0, SPAN - 5000))))
    assert np.allclose(patches(short)[0, 40:], np.log(0.01))


@settings(max_examples=30, deadline=None)
@given(
    count=st.integers(0, SPAN + 2 * STEP + 500),
    cuts=st.lists(st.integers(0, SPAN + 2 * STEP + 500), max_size=12),
    seed=st.integers(0, 3),
)
def test_the_bits_do_not_depend_on_how_the_sound_is_cut(count: int, cuts: list[int], seed: int) -> None:
    whole = sound(count, seed)
    blocks = np.split(whole, sorted(min(cut, count) for cut in cuts))
    found = list(stream_patches(iter(blocks)))
    assert all(len(some) > 0 for some in found)
    joined = np.concatenate([np.empty((0, 96, 64), np.float32), *found])
    assert joined.tobytes() == patches(whole).tobytes()


def test_patches_come_as_soon_as_they_are_complete() -> None:
    whole = sound(SPAN + STEP)
    stream = stream_patches(iter([whole[: SPAN - 1], whole[SPAN - 1 : SPAN], whole[SPAN:]]))
    assert np.array_equal(next(stream), patches(whole[:SPAN]))
    assert np.array_equal(next(stream), patches(whole)[1:])
    assert next(stream, None) is None


def test_a_long_sound_needs_little_memory() -> None:
    block = sound(16000)

    def run(seconds: int) -> int:
        tracemalloc.start()
        count = sum(len(some) for some in stream_patches(block for _ in range(seconds)))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert count == (seconds * 16000 - SPAN) // STEP + 1
        return peak

    short, long = run(3), run(120)
    assert long < short + 200_000


def test_patches_around_times_are_those_of_the_sound_there() -> None:
    """With times of its own patches' middles, the same bits; elsewhere, the patch of what lies there; silence outside."""
    samples = sound(3 * STEP + SPAN)
    middles = (np.arange(4) * STEP + SPAN // 2) / 16000
    for cut in (len(samples), 5000):
        blocks = [samples[n : n + cut] for n in range(0, len(samples), cut)]
        assert np.array_equal(np.concatenate([*stream_patches_at(blocks, middles)]), patches(samples))
    silence = np.zeros(16000, np.float32)
    longer = np.concatenate([silence, samples, silence])
    times = np.array([0.0, 0.3, 0.3, 1.25, len(samples) / 16000, 99.0])
    found = np.concatenate([*stream_patches_at([samples[:20000], samples[20000:]], times)])
    for time, patch in zip(times[:5], found, strict=False):
        start = round(time * 16000) + 16000 - SPAN // 2
        assert np.array_equal(patch, patches(longer[start : start + SPAN])[0])
    assert np.array_equal(found[5], patches(silence[:SPAN])[0]) and len(found) == 6
    assert list(stream_patches_at([], times)) == []
