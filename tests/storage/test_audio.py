"""The sound of a video."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from storage.audio import read_audio
from storage.errors import BadMedia
from tests.storage.clips import make_clip, make_sound, numbered_image


def pitch(samples: np.ndarray, rate: int) -> float:
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples))))
    return float(np.argmax(spectrum)) * rate / len(samples)


@pytest.mark.parametrize("name", ["clip.mp4", "clip.ts", "clip.mkv"])
def test_a_tone_keeps_its_pitch_and_length(tmp_path: Path, name: str) -> None:
    samples = read_audio(make_clip(tmp_path / name, 50, tone=880.0))
    assert samples is not None and samples.dtype == np.float32 and samples.ndim == 1
    assert abs(len(samples) / 16000 - 2.0) < 0.15
    assert abs(pitch(samples, 16000) - 880) < 5
    assert abs(samples[4000:28000].std() - 0.5 / np.sqrt(2)) < 0.02


def test_another_rate_and_a_segment(tmp_path: Path) -> None:
    samples = read_audio(make_sound(tmp_path / "a: b.m4a", 440.0, 3.0), rate=8000, segment=(1.0, 2.0))
    assert samples is not None and len(samples) == 8000
    assert abs(pitch(samples, 8000) - 440) < 5


def test_no_sound_is_an_answer(tmp_path: Path) -> None:
    assert read_audio(make_clip(tmp_path / "silent.mp4", 5)) is None
    Image.fromarray(numbered_image(1)).save(tmp_path / "picture.png")
    assert read_audio(tmp_path / "picture.png") is None


def test_a_broken_file_says_so(tmp_path: Path) -> None:
    (tmp_path / "notes.mp4").write_text("not a video at all\n" * 50)
    with pytest.raises(BadMedia) as caught:
        read_audio(tmp_path / "notes.mp4")
    assert caught.value.kind == "not_media"


def test_a_decoder_that_takes_too_long_is_stopped(tmp_path: Path) -> None:
    with pytest.raises(BadMedia) as caught:
        read_audio(make_sound(tmp_path / "long.m4a", 440.0, 5.0), timeout=0.001)
    assert caught.value.kind == "timeout"
