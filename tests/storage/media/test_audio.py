"""The sound of a video."""

from __future__ import annotations

import os
import time
import tracemalloc
import wave
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from storage.errors import BadMedia
from storage.media import audio
from storage.media.audio import stream_audio
from tests.storage.clips import make_clip, make_sound, numbered_image
from tests.storage.decoding import read_audio


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


def long_wav(path: Path, minutes: int) -> Path:
    """A mono file of 16 kHz whose samples count up and start again, so that a lost or doubled one shows."""
    ramp = (np.arange(60 * 16000) % 30011).astype("<i2")
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16000)
        for _ in range(minutes):
            file.writeframes(ramp.tobytes())
    return path


def test_blocks_of_a_long_sound_take_little_memory(tmp_path: Path) -> None:
    blocks = stream_audio(long_wav(tmp_path / "long.wav", 20))
    assert blocks is not None
    ramp = (np.arange(60 * 16000) % 30011).astype(np.float32) / 32768
    tracemalloc.start()
    for n, block in enumerate(blocks):
        assert np.array_equal(block, ramp[n % 2 * 480000 :][:480000])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert n == 39
    assert peak < 12_000_000  # the whole sound is 77 MB


def test_the_whole_is_its_blocks(tmp_path: Path) -> None:
    path = make_sound(tmp_path / "tone.m4a", 440.0, 65.0)
    blocks = list(stream_audio(path) or ())
    whole = read_audio(path)
    assert [len(block) for block in blocks[:-1]] == [480000, 480000]
    assert whole is not None and np.array_equal(np.concatenate(blocks), whole)
    assert abs(len(whole) / 16000 - 65) < 0.15


def test_a_segment_after_the_end_is_empty(tmp_path: Path) -> None:
    samples = read_audio(make_sound(tmp_path / "tone.m4a", 440.0, 1.0), segment=(50.0, 51.0))
    assert samples is not None and len(samples) == 0


def test_no_sound_is_an_answer(tmp_path: Path) -> None:
    assert read_audio(make_clip(tmp_path / "silent.mp4", 5)) is None
    Image.fromarray(numbered_image(1)).save(tmp_path / "picture.png")
    assert read_audio(tmp_path / "picture.png") is None
    assert stream_audio(tmp_path / "picture.png") is None


def test_a_broken_file_says_so(tmp_path: Path) -> None:
    (tmp_path / "notes.mp4").write_text("not a video at all\n" * 50)
    with pytest.raises(BadMedia) as caught:
        read_audio(tmp_path / "notes.mp4")
    assert caught.value.kind == "not_media"


def test_a_decoder_that_takes_too_long_is_stopped(tmp_path: Path) -> None:
    with pytest.raises(BadMedia) as caught:
        read_audio(make_sound(tmp_path / "long.m4a", 440.0, 5.0), timeout=0.001)
    assert caught.value.kind == "timeout"


def test_a_sound_that_is_garbage_says_so_and_always_the_same(tmp_path: Path) -> None:
    path = make_sound(tmp_path / "tone.m4a", 440.0, 3.0)
    content = bytearray(path.read_bytes())
    start = content.find(b"mdat") + 4
    size = int.from_bytes(content[start - 8 : start - 4], "big") - 8
    content[start : start + size] = np.random.default_rng(0).integers(0, 256, size, dtype=np.uint8).tobytes()
    path.write_bytes(content)
    reasons = set()
    for _ in range(2):
        with pytest.raises(BadMedia) as caught:
            read_audio(path)
        assert caught.value.kind == "undecodable"
        reasons.add(caught.value.reason)
    assert len(reasons) == 1 and "0x" not in reasons.pop()


def test_samples_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    with av.open(str(tmp_path / "nan.wav"), "w") as container:
        stream = container.add_stream("pcm_f32le", rate=16000, layout="mono")
        samples = np.zeros((1, 16000), np.float32)
        samples[0, 500] = np.nan
        frame = av.AudioFrame.from_ndarray(samples, format="flt", layout="mono")
        frame.sample_rate = 16000
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    with pytest.raises(BadMedia, match=r"no numbers") as caught:
        read_audio(tmp_path / "nan.wav")
    assert caught.value.kind == "undecodable"


def stand_in(monkeypatch: pytest.MonkeyPatch, path: Path, *lines: str) -> None:
    """Have a script in ffmpeg's place: what the real one does only in a bad hour cannot be asked of it."""
    path.write_text("\n".join(["#!/bin/sh", *lines]))
    path.chmod(0o755)
    monkeypatch.setattr(audio, "_ffmpeg", lambda: str(path))


def test_a_decoder_that_complains_a_lot_does_not_stand_still(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_sound(tmp_path / "tone.m4a", 440.0, 1.0)
    complain = "head -c 1000000 /dev/zero | tr '\\0' 'x' >&2"
    stand_in(monkeypatch, tmp_path / "loud", complain, "head -c 4000000 /dev/zero", complain)
    samples = read_audio(path, timeout=20.0)
    assert samples is not None and len(samples) == 1_000_000


def test_a_decoder_that_dies_says_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_sound(tmp_path / "tone.m4a", 440.0, 1.0)
    stand_in(monkeypatch, tmp_path / "dying", "head -c 4000 /dev/zero", "kill -SEGV $$")
    with pytest.raises(BadMedia, match="SIGSEGV") as caught:
        read_audio(path)
    assert caught.value.kind == "crashed"


def wait_until_gone(process: int) -> bool:
    for _ in range(100):
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.02)
    return False


def test_a_decoder_that_hangs_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_sound(tmp_path / "tone.m4a", 440.0, 1.0)
    stand_in(monkeypatch, tmp_path / "hanging", f"echo $$ > {tmp_path}/pid", "head -c 4000 /dev/zero", "exec sleep 60")
    with pytest.raises(BadMedia, match=r"within 1\.5 s") as caught:
        read_audio(path, timeout=1.5)
    assert caught.value.kind == "timeout"
    assert wait_until_gone(int((tmp_path / "pid").read_text()))


def test_closing_the_blocks_stops_the_decoder_and_the_reader_may_take_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_sound(tmp_path / "tone.m4a", 440.0, 1.0)
    stuck = (f"echo $$ > {tmp_path}/pid", "head -c 3840000 /dev/zero", "exec sleep 60")
    stand_in(monkeypatch, tmp_path / "stuck", *stuck)
    blocks = stream_audio(path, timeout=2.0)
    assert blocks is not None and not (tmp_path / "pid").exists()
    next(blocks)
    time.sleep(2.1)
    assert len(next(blocks)) == 480000
    process = int((tmp_path / "pid").read_text())
    os.kill(process, 0)
    blocks.close()
    assert wait_until_gone(process)
