"""The checks of the self-test: each gives rows of a table, and none stops another. A limit is what half precision, or another
order of summing, may change; without a GPU the CPU is compared with itself, so that these checks are checked."""

import os
import platform
import traceback
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

from models.backbones.batches import ItemBatch
from models.backbones.zoo import BACKBONES, module_of
from models.decoding.greedy_and_sampling import greedy
from models.training.loop import FitOptions, fit
from tasks.extraction.nets import NetSpec, open_net
from tasks.gpu_selftest.speeds import speeds
from tasks.gpu_selftest.toy_training import CAPTIONERS, LONGEST, RandomBatches, batch_of, captioner_of, seeding

LIMITS = {"float32": 1e-3, "tf32": 1e-2, "float16": 3e-2, "bfloat16": 1e-1}
"""largest difference of a net's outputs, as a share of the largest output of the CPU in float32"""
_CAPTIONER_LIMIT, _PROCESSES_LIMIT, _STEPS = 1e-3, 1e-3, 3


@dataclass(frozen=True)
class Check:
    """One row of the self-test. passed is None for a speed, which has no limit, and for what was left out."""

    what: str
    found: str
    passed: bool | None = None


def run_selftest() -> dict[str, Any]:
    """All checks on this machine's GPUs, or as many as a CPU can run: a report for a table and for JSON."""
    there = torch.cuda.device_count() if torch.cuda.is_available() else 0
    device, left_out = ("cuda" if there else "cpu"), []
    if not there:
        left_out.append("no GPU was found: the CPU is compared with itself, in float32 and bfloat16, on one small net")
    if there < 2:
        left_out.append("two processes on two GPUs: they need two; two processes on the CPU were run")
    checks: list[Check] = []
    left_out.append("region nets: of random weights no proposal stands out, and rounding ranks them")
    for run in (compare_nets, compare_captioners, compare_resume, compare_processes, speeds_of):
        try:
            checks += run(device)
        except Exception as error:  # of any kind: whoever reports it must see the others too
            last = traceback.extract_tb(error.__traceback__)[-1]
            checks.append(Check(run.__name__, f"{type(error).__name__}: {error} ({last.filename}:{last.lineno})", False))
    return {"machine": machine(), "device": device, "checks": [asdict(check) for check in checks], "left_out": left_out}


def machine() -> dict[str, Any]:
    """What a bug report must say of a machine."""
    cards = [torch.cuda.get_device_properties(n) for n in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    return {
        "platform": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "cards": [{"name": card.name, "gigabytes": round(card.total_memory / 2**30, 1)} for card in cards],
    }


def compare_nets(device: str) -> Iterator[Check]:
    """Each backbone on the CPU in float32 against the device in every precision."""
    nets = [name for name in BACKBONES if module_of(name) != "region"] if device != "cpu" else ["timm:test_resnet"]
    for name in nets:
        reference = open_net(NetSpec(name, "random", "", "torch", "cpu", "float32"))
        backbone = reference.backbone
        random, items = np.random.default_rng(0), np.zeros(0)
        if backbone.preprocessing is None:
            items = random.normal(size=(2, 96, 64)).astype(np.float32)
        else:
            width, height = backbone.preprocessing.crop or backbone.preprocessing.size or (320, 240)
            items = random.integers(0, 256, (2, backbone.clip or 1, height, width, 3), np.uint8)
        batch = ItemBatch(items, 2, dict.fromkeys(backbone.outputs, "float32"))
        expected = reference.start(batch)()
        for precision in ("float32", "tf32", "float16", "bfloat16") if device != "cpu" else ("float32", "bfloat16"):
            found = open_net(NetSpec(name, "random", "", "torch", device, precision)).start(batch)()
            apart = max(_apart(found[output], expected[output]) for output in expected)
            yield Check(
                f"{name} in {precision}", f"{apart:.1e} from the CPU, {LIMITS[precision]:g} allowed", apart <= LIMITS[precision]
            )
        open_net.cache_clear()


def compare_captioners(device: str) -> Iterator[Check]:
    """Losses, gradients and greedy captions of every captioner in float32."""
    for kind in CAPTIONERS:
        results = []
        for place in ("cpu", device):
            captioner = captioner_of(kind).to(place)
            batch = batch_of(0).to(place)
            total, _ = seeding()(captioner, batch)
            total.backward()
            gradient = torch.cat([p.grad.flatten() for p in captioner.parameters() if p.grad is not None]).cpu()
            tokens = greedy(captioner.eval(), batch.features, batch.masks, LONGEST).tokens.cpu()
            results.append((total.item(), gradient, tokens))
        (loss, gradient, tokens), (other_loss, other_gradient, other_tokens) = results
        apart, steeper = abs(other_loss - loss) / abs(loss), _apart(other_gradient.numpy(), gradient.numpy())
        same = torch.equal(tokens, other_tokens)
        words = f"loss {apart:.1e}, gradient {steeper:.1e} from the CPU; greedy captions {'equal' if same else 'differ'}"
        yield Check(f"{kind}", words, max(apart, steeper) <= _CAPTIONER_LIMIT and same)


def compare_resume(device: str) -> Iterator[Check]:
    """Steps with dropout, a snapshot after the first, and again from it: equal bits, with deterministic algorithms."""
    before = torch.are_deterministic_algorithms_enabled()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    try:
        how, batches = FitOptions(epochs=1, learning_rate=1e-2), RandomBatches(_STEPS)
        torch.manual_seed(1)
        *_, last = snapshots = [
            p.snapshot() for p in fit(captioner_of("sa_lstm", dropout=0.5), seeding(), batches, how, None, device)
        ]
        *_, again = (
            p.snapshot() for p in fit(captioner_of("sa_lstm", dropout=0.5), seeding(), batches, how, snapshots[0], device)
        )
    finally:
        torch.use_deterministic_algorithms(before)
    differ = [name for name, tensor in last.tensors.items() if not torch.equal(tensor, again.tensors[name])]
    yield Check("resume", f"{len(last.tensors)} tensors equal" if not differ else f"{', '.join(differ[:3])} differ", not differ)


def compare_processes(device: str) -> Iterator[Check]:
    """The losses of some steps by two processes against one; on GPUs where there are two, else on the CPU."""
    place = device if device != "cpu" and torch.cuda.device_count() > 1 else "cpu"
    with TemporaryDirectory() as folder:
        alone, together = (_losses_of(count, place, folder) for count in (1, 2))
    apart = _apart(together, alone)
    yield Check(
        f"2 processes on {place}",
        f"losses {apart:.1e} from those of one, {_PROCESSES_LIMIT:g} allowed",
        apart <= _PROCESSES_LIMIT,
    )


def speeds_of(device: str) -> Iterator[Check]:
    return (Check(what, found) for what, found in speeds(device))


def _losses_of(processes: int, device: str, folder: str) -> np.ndarray:
    if processes == 1:
        return np.array(_train(device))
    mp.spawn(_train_as_rank, (processes, device, folder), processes)
    return np.load(f"{folder}/losses.npy")


def _train(device: str) -> list[float]:
    torch.set_num_threads(1)
    captioner, how = captioner_of("glrg"), FitOptions(epochs=1, learning_rate=1e-2)
    return [progress.losses["total"] for progress in fit(captioner, seeding(), RandomBatches(_STEPS), how, None, device)]


def _train_as_rank(rank: int, processes: int, device: str, folder: str) -> None:
    card = torch.device("cuda", rank) if device != "cpu" else None
    if card:
        torch.cuda.set_device(card)
    meeting, backend = f"file://{folder}/meeting", "cpu:gloo,cuda:nccl" if card else "gloo"
    dist.init_process_group(backend, meeting, world_size=processes, rank=rank, device_id=card)
    losses = _train(device)
    if rank == 0:
        np.save(f"{folder}/losses.npy", losses)
    dist.barrier()
    dist.destroy_process_group()


def _apart(found: np.ndarray | Tensor, expected: np.ndarray | Tensor) -> float:
    """The largest difference, as a share of the largest value; infinite if anything is not finite."""
    one, other = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    if not np.isfinite(one).all():
        return float("inf")
    return float(np.abs(one - other).max() / max(np.abs(other).max(), 1e-12))
