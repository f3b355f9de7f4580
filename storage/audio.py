"""The sound of a video, decoded by ffmpeg in a process of its own: mono samples at the rate that a model wants."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import ffmpeg
import imageio_ffmpeg
import numpy as np
from numpy.typing import NDArray

from storage.containers import DEMUXERS, open_media, picture_format, read_header
from storage.errors import BadMedia, StorageError


def read_audio(
    path: Path, rate: int = 16000, segment: tuple[float, float] | None = None, timeout: float = 300.0
) -> NDArray[np.float32] | None:
    """The first sound track as (samples,) float32 in -1 to 1, mono, `rate` samples a second from the start of the video
    (or of the segment, in seconds) on. None if the file has no sound."""
    if picture_format(read_header(path)) is not None:
        return None
    with open_media(path) as container:
        if not container.streams.audio:
            return None
    window = {} if segment is None else {"ss": max(0.0, segment[0]), "t": max(0.0, segment[1] - max(0.0, segment[0]))}
    sound = ffmpeg.input(
        f"file:{path.absolute()}", protocol_whitelist="file,pipe", format_whitelist=",".join(DEMUXERS), **window
    ).audio
    # A track that begins later than the picture is led in by silence, so that sample n is heard at n / rate seconds.
    sound = sound.filter("aresample", **{"async": 1, "first_pts": 0})
    output = ffmpeg.output(sound, "pipe:1", format="f32le", acodec="pcm_f32le", ac=1, ar=rate)
    command = ffmpeg.compile(output.global_args("-nostdin", "-hide_banner", "-v", "error"), cmd=_ffmpeg())
    # The bundled static binary crashes on MPEG-TS when it finds the system's character tables.
    environment = {**os.environ, "GCONV_PATH": "/nonexistent"}
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout, env=environment)
    except subprocess.TimeoutExpired:
        raise BadMedia("timeout", f"{path}: its sound was not decoded within {timeout:g} s; convert it") from None
    if done.returncode < 0:
        name = signal.Signals(-done.returncode).name
        raise BadMedia("crashed", f"{path}: ffmpeg died ({name}) on its sound track; convert it")
    if done.returncode:
        words = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {done.returncode}"]
        raise BadMedia("undecodable", f"{path}: its sound cannot be decoded: {words[-1]}; convert it")
    return np.frombuffer(done.stdout, dtype="<f4").astype(np.float32)


def _ffmpeg() -> str:
    """The ffmpeg to call: the bundled one, so that the samples are the same on every machine, else the system's."""
    try:
        return imageio_ffmpeg.get_ffmpeg_exe()
    except RuntimeError as error:
        raise StorageError("there is no ffmpeg for this machine; install ffmpeg and run the same command") from error
