"""The sound of a video, decoded by ffmpeg in a process of its own: mono samples at the rate that a model wants."""

import os
import re
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Generator
from pathlib import Path
from typing import IO

import ffmpeg
import imageio_ffmpeg
import numpy as np
from numpy.typing import NDArray

from storage.errors import BadMedia, StorageError
from storage.media.containers import DEMUXERS, open_media, picture_format, read_header
from storage.records import TimeSpan

BLOCK_SECONDS = 30
"""Sound that `stream_audio` holds at a time."""

Sound = Generator[NDArray[np.float32], None, None]


def stream_audio(path: Path, rate: int = 16000, segment: TimeSpan | None = None, timeout: float = 300) -> Sound | None:
    """The first sound track as float32 in -1 to 1, mono, `rate` samples per second from the start of the video (or of the
    segment), in blocks of 30 s, the last one shorter; None if the file has no sound. ffmpeg starts with the first block and
    stops when the generator is closed. `timeout` is how many seconds it may be waited for in all. An error in the sound may
    show only after its last block: use the samples when all have come."""
    if picture_format(read_header(path)) is not None:
        return None
    with open_media(path) as container:
        if not container.streams.audio:
            return None
    return _blocks(path, _command(path, rate, segment), BLOCK_SECONDS * rate * 4, timeout)


def _command(path: Path, rate: int, segment: TimeSpan | None) -> list[str]:
    window = {} if segment is None else {"ss": max(0.0, segment[0]), "t": max(0.0, segment[1] - max(0.0, segment[0]))}
    sound = ffmpeg.input(
        f"file:{path.absolute()}", protocol_whitelist="file,pipe", format_whitelist=",".join(DEMUXERS), **window
    ).audio
    # A track that begins later than the picture is led in by silence, so that sample n is heard at n / rate seconds.
    sound = sound.filter("aresample", **{"async": 1, "first_pts": 0})
    output = ffmpeg.output(sound, "pipe:1", format="f32le", acodec="pcm_f32le", ac=1, ar=rate)
    return ffmpeg.compile(output.global_args("-nostdin", "-hide_banner", "-v", "error"), cmd=_ffmpeg())


def _blocks(path: Path, command: list[str], size: int, timeout: float) -> Sound:
    """What the command prints, as float32, `size` bytes at a time; BadMedia if it fails."""
    # The bundled static binary crashes on MPEG-TS when it finds the system's character tables.
    environment = {**os.environ, "GCONV_PATH": "/nonexistent"}
    # Errors go to a file: nobody reads a pipe of them meanwhile, and a full pipe would stop the decoder.
    with tempfile.TemporaryFile() as errors:
        decoder = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, env=environment, bufsize=0
        )
        try:
            assert decoder.stdout is not None
            left = timeout
            while True:
                raw, left = _read(decoder.stdout, size, left)
                block = np.frombuffer(raw, dtype="<f4", count=len(raw) // 4).astype(np.float32)
                if not np.isfinite(block).all():
                    raise BadMedia("undecodable", f"{path}: its sound holds values that are no numbers; convert it")
                if len(block):
                    yield block
                if len(raw) < size:
                    break
            code = decoder.wait(max(left, 1.0))
        except (TimeoutError, subprocess.TimeoutExpired):
            raise BadMedia("timeout", f"{path}: its sound was not decoded within {timeout:g} s; convert it") from None
        finally:
            decoder.kill()
            decoder.communicate()  # waits, and closes the pipe
        if code < 0:
            raise BadMedia("crashed", f"{path}: ffmpeg died ({signal.Signals(-code).name}) on its sound; convert it")
        if code:
            reason = _first_error(errors) or f"exit code {code}"
            raise BadMedia("undecodable", f"{path}: its sound cannot be decoded: {reason}; convert it")


def _read(pipe: IO[bytes], size: int, left: float) -> tuple[bytearray, float]:
    """`size` bytes of a pipe, fewer only at its end, and the seconds of `left` that waiting for them did not use up."""
    raw, count = bytearray(size), 0
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    while count < size:
        began = time.monotonic()
        ready = poll.poll(max(0.0, left) * 1000)
        left -= time.monotonic() - began
        if not ready:
            raise TimeoutError
        count_read = pipe.readinto(memoryview(raw)[count:])  # type: ignore[attr-defined]  # unbuffered, so it has one
        if not count_read:
            break
        count += count_read
    return raw[:count], left


def _first_error(errors: IO[bytes]) -> str:
    """What went wrong first (the rest often follows from it), without addresses in memory, which differ in each run."""
    errors.seek(0)
    lines = errors.read(4096).decode(errors="replace").strip().splitlines()
    return re.sub(r"\[[^]]* @ 0x[0-9a-f]+] ", "", lines[0]) if lines else ""


def _ffmpeg() -> str:
    """The ffmpeg to call: the bundled one, so that the samples are the same on every machine, else the system's."""
    try:
        return imageio_ffmpeg.get_ffmpeg_exe()
    except RuntimeError as error:
        raise StorageError("there is no ffmpeg for this machine; install ffmpeg and run the same command") from error
