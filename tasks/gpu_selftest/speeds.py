"""The speeds that the self-test measures: nets by batch size, decoding, steps of seeding and boosting. Medians of a few runs."""

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from models.backbones.batches import ItemBatch
from models.training.loop import FitOptions, fit
from storage.datasets.demo import encode_clip
from storage.media.decode_pool import DecodePool
from storage.media.frame_sampling import Uniform
from storage.media.frame_stream import DecodeJob, FrameRequest, gather, stream_frames
from storage.media.probe import probe
from tasks.extraction.nets import NetSpec, open_net
from tasks.framework.runtime import Runtime
from tasks.gpu_selftest.toy_training import RandomBatches, boosting, captioner_of, seeding

_RUNS = 3


def speeds(device: str) -> Iterator[tuple[str, str]]:
    """What was measured, and how fast it was."""
    net, sizes = ("resnet101", (16, 64, 256)) if device != "cpu" else ("timm:test_resnet", (4, 16))
    for size in sizes:
        yield f"{net}, batch of {size}", f"{frames_per_second(net, size, device):,.0f} frames per second"
    decoders = Runtime().decoders
    yield f"decoding by {decoders} processes", f"{decoded_per_second(decoders):,.0f} frames of 320 x 240 per second"
    videos, hidden = (32, 512) if device != "cpu" else (6, 24)
    for what, objective in (("XE", seeding()), ("RL with b2", boosting(videos))):
        captioner = captioner_of("sa_lstm", hidden=hidden, attention=hidden // 2, dropout=0.5)
        steps = fit(
            captioner, objective, RandomBatches(3 + _RUNS, videos, 5), FitOptions(epochs=1, learning_rate=1e-4), None, device
        )
        yield (
            f"SA-LSTM {hidden}, {what}, {videos} videos x 5",
            f"{1 / _median(partial(next, steps), 3):,.1f} steps per second",
        )


def frames_per_second(net: str, size: int, device: str) -> float:
    """Frames through a net in the precision that runtime.precision auto takes, the copies both ways included."""
    opened = open_net(NetSpec(net, "random", "", "torch", device, "float16" if device != "cpu" else "float32"))
    preprocessing = opened.backbone.preprocessing
    assert preprocessing is not None and preprocessing.crop is not None
    items = torch.zeros((size, 1, *preprocessing.crop[::-1], 3), dtype=torch.uint8, pin_memory=device != "cpu").numpy()
    batch = ItemBatch(items, size, {"pooled": "float16"})
    return size / _median(lambda: opened.start(batch)())


def decoded_per_second(decoders: int) -> float:
    """Frames of drawn clips, every one of them wanted, as an extraction decodes them."""
    frames, clips = 60, 4 * max(1, decoders)
    drawn = np.indices((frames, 240, 320)).sum(0, dtype=np.uint8)[..., None].repeat(3, -1)  # a slope that moves
    with TemporaryDirectory() as folder, DecodePool(decoders, 60.0) as pool:
        path = Path(folder) / "clip.mp4"
        path.write_bytes(encode_clip(drawn, np.zeros(8000, np.float32), 24))
        job = DecodeJob(path, {"all": FrameRequest(Uniform(frames=frames))}, None, probe(path))
        list(pool.stream(stream_frames, [job]))  # the processes have started
        start = time.perf_counter()
        for _, events in pool.stream(stream_frames, [job] * clips):
            gather(events)
        return clips * frames / (time.perf_counter() - start)


def _median(run: Callable[[], object], before: int = 1) -> float:
    """Seconds of a run, after some that are not counted."""
    took = []
    for n in range(before + _RUNS):
        start = time.perf_counter()
        run()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        if n >= before:
            took.append(time.perf_counter() - start)
    return statistics.median(took)
