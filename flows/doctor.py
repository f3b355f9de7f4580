"""Checks of the set-up: what works on this machine, what does not, and what to do about it."""

import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from storage.files.sanitising import without_login
from storage.machine import allowed_cores, cgroup_limit, usable_cores
from storage.weights import WeightsFolder


@dataclass(frozen=True)
class Finding:
    """The result of one check. `remedy` is empty if it is fine."""

    what: str
    found: str
    remedy: str = ""

    @property
    def fine(self) -> bool:
        return not self.remedy


def run_checks(workspace: Path) -> list[Finding]:
    """Run all checks; none stops another."""
    return [
        _python(),
        *_packages(),
        _device(),
        _cores(),
        _engine(),
        _ffmpeg(),
        _decoding(),
        _prefect(),
        _java(),
        _weights(),
        _disk(workspace),
    ]


def _python() -> Finding:
    fine = (3, 11) <= sys.version_info[:2] < (3, 14)
    return Finding("Python", platform.python_version(), "" if fine else "install Python 3.11, 3.12 or 3.13")


def _packages() -> list[Finding]:
    findings = []
    for name in ("torch", "torchvision", "timm", "openvino", "prefect", "zarr", "pyarrow", "decord", "av"):
        try:
            findings.append(Finding(name, version(name)))
        except PackageNotFoundError:
            findings.append(Finding(name, "missing", "run 'pip install -e .' in Longtake's folder"))
    return findings


def _device() -> Finding:
    import torch

    if torch.cuda.is_available():
        return Finding("device", f"GPU {torch.cuda.get_device_name(0)}")
    return Finding("device", "CPU; no GPU was found, so training is slow but exact")


def _cores() -> Finding:
    """What the defaults make of the processors that this process may use."""
    from tasks.framework.runtime import Runtime

    allowed, limit, runtime = allowed_cores(), cgroup_limit(), Runtime()
    why = f"{allowed} of {os.cpu_count()} by affinity" + (f", {limit:g} by the control group" if limit is not None else "")
    nets = f"{runtime.net_count} net processes of one thread and {runtime.decoders} decoders"
    return Finding("cores", f"{usable_cores()} to use ({why}): {nets}; training on {runtime.training_threads} threads")


def _engine() -> Finding:
    """Run a tiny net through OpenVINO and compare."""
    import torch

    from models.backbones.openvino_model import CannotConvert, OpenVinoModel, convert, knows_bfloat16
    from models.backbones.weights import first_line
    from models.backbones.zoo import open_backbone

    backbone, items = open_backbone("timm:test_resnet", None, 0), np.full((1, 1, 160, 160, 3), 90, np.uint8)
    with TemporaryDirectory() as folder:
        file = Path(folder) / "model.xml"
        try:
            convert(backbone, items.shape, file)
            found = OpenVinoModel(file, "float32", 1)(items)["pooled"]
        except (CannotConvert, ImportError, RuntimeError) as error:
            remedy = "reinstall openvino, or set runtime.engine to torch"
            return Finding("engine", f"OpenVINO does not run here ({first_line(error)})", remedy)
    wanted = backbone(torch.from_numpy(items))["pooled"].numpy()
    apart = float(np.abs(found - wanted).max() / np.abs(wanted).max())
    half = "bfloat16 too" if knows_bfloat16() else "no bfloat16 on this processor"
    words = f"OpenVINO on CPUs, {apart:.0e} from torch on a small net; {half}"
    return Finding("engine", words, "" if apart < 1e-4 else "set runtime.engine to torch, and report this")


def _ffmpeg() -> Finding:
    from imageio_ffmpeg import get_ffmpeg_exe

    try:
        output = subprocess.run([get_ffmpeg_exe(), "-version"], capture_output=True, text=True, timeout=30).stdout
        return Finding("ffmpeg", output.split("\n")[0].partition(" Copyright")[0])
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        return Finding("ffmpeg", f"does not start ({error})", "reinstall imageio-ffmpeg; without it there is no sound")


def _decoding() -> Finding:
    """Write a clip of three frames, decode it in a worker process, and compare the pixels."""
    from storage.datasets.demo import encode_clip
    from storage.errors import BadMedia, StorageError
    from storage.media.decode_pool import DecodePool
    from storage.media.frame_sampling import Uniform
    from storage.media.frame_stream import DecodeJob, FrameRequest, gather, stream_frames
    from storage.media.probe import probe

    frames = np.stack([np.full((64, 64, 3), shade, np.uint8) for shade in (40, 120, 200)])
    with TemporaryDirectory() as folder:
        path = Path(folder) / "clip.mp4"
        path.write_bytes(encode_clip(frames, np.zeros(4000, np.float32), 12))
        try:
            job = DecodeJob(path, {"all": FrameRequest(Uniform(frames=3))}, None, probe(path))
            with DecodePool(1, 60.0) as pool:
                ((_, images),) = ((job, gather(events)["all"].images) for job, events in pool.stream(stream_frames, [job]))
        except StorageError as error:
            return Finding("decoding", str(error), "see the message; 'pip install -e .' may help")
        except BadMedia as bad:
            return Finding("decoding", bad.reason, "reinstall av and decord")
    shades = images.mean((1, 2, 3, 4)).round().tolist()
    fine = np.allclose(shades, [40, 120, 200], atol=6)
    return Finding("decoding", f"grey levels 40, 120, 200 came back as {shades}", "" if fine else "reinstall av and decord")


def _prefect() -> Finding:
    from prefect.settings import PREFECT_API_URL, PREFECT_HOME

    url = PREFECT_API_URL.value()
    if not url:
        return Finding("Prefect", f"its embedded server, with the database in {PREFECT_HOME.value()}")
    import httpx

    shown = without_login(url)
    try:
        httpx.get(f"{url}/health", timeout=5).raise_for_status()
        return Finding("Prefect", f"server at {shown}")
    except httpx.HTTPError as error:
        why = str(error).replace(url, shown)
        return Finding("Prefect", f"{shown} does not answer ({why})", "start that server, or unset PREFECT_API_URL")


def _java() -> Finding:
    from models.metrics.java import NoJava, find_java

    try:
        return Finding("Java", str(find_java()))
    except NoJava as error:
        return Finding("Java", "none starts: METEOR is not computed", str(error))


def _weights() -> Finding:
    folder = WeightsFolder()
    known = folder.registered()
    return Finding("weights", f"{len(known)} nets in {folder.path}" if known else f"none yet in {folder.path}")


def _disk(workspace: Path) -> Finding:
    folder = workspace.expanduser().absolute()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free / 1e9
    remedy = "" if free > 1 else "free some room or choose another --workspace"
    return Finding("disk", f"{free:.1f} GB free at {folder}", remedy)
