"""The nets of features and the two engines that run them, torch and OpenVINO: arrays in, arrays out.

In a module of its own, apart from every task: processes that run batches import this one (or, for OpenVINO, one without torch),
so its cache holds one loaded net per process."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from models.backbones.backbone import Backbone, Preprocessing
from models.backbones.batches import ItemBatch
from models.backbones.openvino_model import Arithmetic, ModelBatch, knows_bfloat16, run_model
from models.backbones.weights import WeightsUnavailable
from models.backbones.zoo import WEIGHTLESS, canonical, module_of, open_backbone
from models.range_tagger import RangeTagger
from models.tagger import GRID, TaggerOptions, WordTagger
from storage.checkpoints import Checkpoint
from storage.errors import BadInput, BadMedia, MissingFeatures, StorageError, TransientError
from storage.media.frame_sampling import Clips, Keyframes, Sampling, Windows
from storage.media.frame_stream import AudioRequest, FrameRequest
from storage.media.resize import FrameTransform, resize_and_crop
from storage.weights import WeightsFolder
from storage.worker_pool import Loss, WorkerPool
from storage.worker_process import WorkerKind
from tasks.extraction.converted_models import converted
from tasks.extraction.extractors import BackboneFeature, TaggerFeature
from tasks.framework.runtime import allow_tf32
from tasks.training.loading import load_tagger

Engine = Literal["torch", "openvino"]
Precision = Literal["auto", "float32", "tf32", "float16", "bfloat16"]
_HALF: dict[str, torch.dtype] = {"float16": torch.float16, "bfloat16": torch.bfloat16}
_CACHED = 8  # nets in memory at once
_OFF = 2.5  # levels: torchvision's resize differs from Pillow's by one or, where bicubic overshoots, two
_SLOW_BATCH = 600.0  # seconds, after which a net process hangs
_NOT_CONVERTED = {"region", "log_mel"}  # modules of the zoo whose nets do more than OpenVINO knows, or have nothing to gain


class NetPool(WorkerPool):
    """Processes that run batches through nets. One that is killed costs its batch's time."""

    kind = WorkerKind("net", keeps_memory=True)
    attempts = 3

    def __init__(self, workers: int) -> None:
        super().__init__(workers, _SLOW_BATCH)

    def explain_loss(self, job: Any, lost: Loss, reason: str) -> BadMedia:
        what = f"a net process was lost {self.attempts} times over one batch ({reason})"
        remedy = "look at the machine's memory, lower runtime.net_processes or runtime.batch"
        raise TransientError(f"{what}; {remedy}, and run the same command: what was extracted is kept")


@dataclass(frozen=True)
class NetSpec:
    """Which net, and how it is run: all that a process needs to open it. Features that differ only in their output share one."""

    name: str
    """of a backbone; empty: the word tagger"""
    weights: str
    """pretrained, random, or the path of a file"""
    hash: str
    engine: Engine
    device: str
    arithmetic: str
    """float32, tf32, float16 or bfloat16"""
    threads: int = 1
    """of an engine on the CPU"""
    seed: int = 0
    only: tuple[str, ...] = ()
    without: tuple[str, ...] = ()


def engine_of(feature: Any, chosen: Literal["auto", "torch", "openvino"], device: str) -> Engine:
    """The engine that runs a feature's net: OpenVINO for backbones on a CPU, where the user does not say otherwise."""
    if isinstance(feature, TaggerFeature):
        return "torch"  # small, and trained here by torch
    converts = module_of(feature.net) not in _NOT_CONVERTED
    if chosen == "openvino" and not (converts and device == "cpu"):
        why = f"{feature.net} does not convert" if device == "cpu" else f"the device is {device}"
        raise BadInput(f"runtime.engine is openvino, but {why}; set it to auto, which takes torch where OpenVINO cannot be used")
    return "openvino" if chosen != "torch" and converts and device == "cpu" else "torch"


def arithmetic_of(feature: Any, device: str, precision: Precision) -> str:
    """The numbers that a feature's net computes with. Rows are kept as float16, so half precision costs them little."""
    if isinstance(feature, BackboneFeature) and feature.precision == "bfloat16":
        return "bfloat16"
    if not device.startswith("cuda"):
        return "float32"
    return "float16" if precision == "auto" else precision


def spec_of(
    feature: Any,
    weights: str,
    tagger: Path | None,
    device: str,
    precision: Precision = "auto",
    engine: Engine = "torch",
    threads: int = 1,
) -> NetSpec:
    """How the net of a feature, whose weights have this hash, is run. `precision` is what the runtime says of GPUs."""
    on_gpu = device.startswith("cuda")
    if precision in ("tf32", *_HALF) and not on_gpu:
        raise BadInput(f"runtime.precision is '{precision}', which needs a GPU; set it to auto")
    arithmetic = arithmetic_of(feature, device, precision)
    if isinstance(feature, TaggerFeature):
        if feature.weights == "trained" and tagger is None:
            raise MissingFeatures("the word tagger was not trained yet; run 'longtake run' without --until")
        path = str(tagger if feature.weights == "trained" else feature.weights)
        return NetSpec("", path, weights, "torch", device, arithmetic, threads, 0, feature.only, feature.without)
    if not isinstance(feature, BackboneFeature):
        raise BadInput(f"features of kind '{feature.kind}' are not extracted")
    if feature.precision == "bfloat16":
        if engine == "torch" and not on_gpu:
            reason = f"{feature.net} is to be computed in bfloat16, which on a CPU needs the engine OpenVINO"
            raise BadInput(f"{reason}; leave its precision out, or set runtime.engine to auto")
        if engine == "openvino" and not knows_bfloat16():
            reason = f"{feature.net} is to be computed in bfloat16, and OpenVINO says that this processor cannot"
            raise BadInput(f"{reason} (it needs AMX or AVX512_BF16); leave its precision out")
    return NetSpec(feature.net, feature.weights, weights, engine, device, arithmetic, threads, feature.seed)


class Net:
    """A backbone and the engine that runs it."""

    def __init__(self, spec: NetSpec, backbone: Backbone):
        self.spec, self.backbone, self.device = spec, backbone, spec.device
        self.in_process = spec.device != "cpu" or not spec.name
        """whether its batches are run by the process that fills them: a GPU's, and those of the small word tagger"""
        self._video_outputs = backbone.video_outputs if isinstance(backbone, VideoBackbone) else {}
        if spec.engine == "torch":
            backbone.net.to(spec.device)
            if spec.device != "cpu":
                self._prepare_for_gpu()

    def request(self, sampling: Sampling | None, name: str, plan: str = "") -> FrameRequest | AudioRequest:
        """What the decoder has to deliver for this net, for the feature of this name; `plan` is the sampling's name."""
        preprocessing, clip = self.backbone.preprocessing, self.backbone.clip
        if preprocessing is None:
            return AudioRequest(sampling, plan)
        if sampling is None:
            raise BadInput(f"features.{name} looks at frames; name one of the recipe's samplings")
        given = getattr(sampling, "length", 0)
        unfit = isinstance(self.backbone, ProcessedBackbone) and not self.backbone.takes(given)
        if clip is not None and (unfit or not isinstance(sampling, Clips | Windows | Keyframes)):
            reason = f"{self.backbone.name} looks at clips of {clip} frames" + (f", not {given}" if given and unfit else "")
            raise BadInput(f"features.{name}: {reason}; give it a sampling of kind 'clips' or 'windows' with length {clip}")
        return FrameRequest(sampling, FrameTransform(**asdict(preprocessing)), plan)

    def job(self, batch: ItemBatch) -> tuple[Callable[[Any], dict[str, np.ndarray]], Any]:
        """What runs a batch, in any process, and its argument."""
        if self.spec.engine == "torch":
            return run_net, NetBatch(self.spec, batch)
        arithmetic: Arithmetic = "bfloat16" if self.spec.arithmetic == "bfloat16" else "float32"
        return run_model, ModelBatch(self._model(batch.items.shape), arithmetic, self.spec.threads, batch)

    def submit(self, batch: ItemBatch) -> Callable[[], dict[str, np.ndarray]]:
        """Start a batch in this process. What is returned gives its wanted outputs: on a CPU they are there already, for a GPU it
        waits, while the next batch can be filled and started."""
        if self.spec.engine != "torch":
            found = run_model(self.job(batch)[1])
            return lambda: found
        return self.start(batch)

    def start(self, batch: ItemBatch) -> Callable[[], dict[str, np.ndarray]]:
        """The same by torch. Only the wanted outputs leave the device, as float16 where that is wanted, through pinned memory."""
        outputs = self(torch.from_numpy(batch.items))
        received = {}
        for name, dtype in batch.outputs.items():
            rows = outputs[name][: batch.count].to(getattr(torch, dtype))
            received[name] = torch.empty(rows.shape, dtype=rows.dtype, pin_memory=rows.is_cuda).copy_(rows, non_blocking=True)
        done = torch.cuda.current_stream().record_event() if self.device.startswith("cuda") else None

        def take() -> dict[str, np.ndarray]:
            if done is not None:
                done.synchronize()
            found = {name: rows.numpy() for name, rows in received.items()}
            if self.spec.arithmetic == "float16" and not all(np.isfinite(rows).all() for rows in found.values()):
                # A number inside the net was beyond float16's 65,504: the batch again, before a video is set aside for it.
                return open_net(replace(self.spec, arithmetic="float32")).start(batch)()
            return found

        return take

    def __call__(self, items: Tensor) -> Mapping[str, Tensor]:
        """By torch: items (N, ...) on the CPU, pinned where that helps -> output -> (N, *shape) float32 on the device."""
        half, device = _HALF.get(self.spec.arithmetic), torch.device(self.device).type
        if device != "cpu":
            allow_tf32(self.spec.arithmetic == "tf32")
        try:
            with torch.inference_mode(), torch.autocast(device, half or torch.bfloat16, enabled=half is not None):
                return self.backbone(items.to(self.device, non_blocking=True))
        except torch.OutOfMemoryError as error:
            reason = f"the GPU has no room for {len(items)} items of {self.backbone.name}"
            raise StorageError(f"{reason}; lower runtime.batch") from error

    def _prepare_for_gpu(self) -> None:
        """Batch norms folded, the layout that tensor cores read, and weights cast once instead of at every batch. Not on a CPU:
        rows there keep their bits."""
        from models.backbones.folding import fold_batch_norms  # imports timm, which takes seconds

        net, backbone = self.backbone.net, self.backbone
        if not self.spec.name or module_of(self.spec.name) == "region":
            return  # they also compute outside of autocast, with float32 weights
        if backbone.preprocessing is not None:
            width, height = backbone.preprocessing.crop or backbone.preprocessing.size or (224, 224)
            example = torch.zeros(1, backbone.clip or 1, height, width, 3, dtype=torch.uint8, device=self.device)
            example.random_(256)
            fold_batch_norms(net, lambda: backbone(example))
        if backbone.clip is not None:
            net.to(memory_format=torch.channels_last_3d)
        if self.spec.arithmetic in _HALF:
            for module in net.modules():
                if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.Linear):
                    module.to(_HALF[self.spec.arithmetic])

    @cache  # noqa: B019 - nets stay open as long as their process
    def _model(self, shape: tuple[int, ...]) -> Path:
        """The net as a file of OpenVINO's for batches of this shape."""
        spec = self.spec
        return converted(self.backbone, canonical(spec.name), shape, [spec.weights, spec.hash, spec.seed])

    def source_output(self, output: str) -> str:
        """The output per position that `output` is computed from: itself, unless it describes whole videos."""
        return self._video_outputs.get(output, output)

    def video_output(self, output: str, rows: np.ndarray) -> np.ndarray:
        """All rows (P, *shape) of one video, of `source_output(output)` -> the one row (1, *shape) of `output`."""
        assert isinstance(self.backbone, VideoBackbone)
        with torch.inference_mode():
            row = self.backbone.video_output(output, torch.from_numpy(rows).float().to(self.device))
        return row.unsqueeze(0).float().cpu().numpy()


@dataclass(frozen=True)
class NetBatch:
    """A batch and the net to run it through, by torch."""

    spec: NetSpec
    batch: ItemBatch


def run_net(job: NetBatch) -> dict[str, np.ndarray]:
    """Run a batch by torch; the net stays open for the next one."""
    if job.spec.device == "cpu" and torch.get_num_threads() != job.spec.threads:
        torch.set_num_threads(job.spec.threads)
    return open_net(job.spec).start(job.batch)()


@runtime_checkable
class VideoBackbone(Protocol):
    """A backbone with outputs that describe a whole video, computed from all its positions."""

    video_outputs: Mapping[str, str]
    """output -> the output per position that it is computed from"""

    def video_output(self, output: str, rows: Tensor) -> Tensor:
        """rows (P, *shape) float32 of one video -> (*shape of the output)."""
        ...


@runtime_checkable
class ProcessedBackbone(Protocol):
    """A backbone that comes with a program of its own which fits frames."""

    def takes(self, length: int) -> bool:
        """Whether a clip may have so many frames."""
        ...

    def off_by(self, frame: np.ndarray, fitted: np.ndarray) -> float:
        """How far a frame (H, W, 3) that was fitted by us is from what its program makes of it, in levels of 0 to 255."""
        ...


def check_fitting(backbone: Backbone) -> None:
    """Compare our fitting of a noisy frame with the net's own program, which may do more than its settings say."""
    if not isinstance(backbone, ProcessedBackbone) or backbone.preprocessing is None:
        return
    frame = np.random.default_rng(0).integers(0, 256, (270, 363, 3), np.uint8)
    off = backbone.off_by(frame, resize_and_crop(frame, FrameTransform(**asdict(backbone.preprocessing))))
    if off > _OFF:
        raise BadInput(f"the processor of {backbone.name} fits frames in a way that is not known here (off by {off:.0f} of 255)")


class _TaggerBackbone:
    """The word tagger as a backbone. Its outputs have the words in `only`, or if that is empty, all but those in `without`."""

    def __init__(self, checkpoint: Checkpoint, only: tuple[str, ...], without: tuple[str, ...]):
        self.name = "the word tagger"
        self._tagger = load_tagger(checkpoint)
        known: list[str] = checkpoint.values.get("words", [])
        if unknown := [word for word in only if word not in known]:
            unknown_words = ", ".join(map(repr, unknown))
            raise BadInput(f"the word tagger does not know {unknown_words}; it knows {', '.join(known)}")
        options, small = self._tagger.options, isinstance(self._tagger, WordTagger)
        excluded = {known.index(word) for word in without if word in known}
        others = [n for n in range(options.words) if n not in excluded]
        self._word_ids = [known.index(word) for word in only] or others
        if not self._word_ids:
            raise BadInput(f"'without' leaves no word of the word tagger, which knows {', '.join(known)}")
        self.net: nn.Module = self._tagger
        self.preprocessing: Preprocessing | None = Preprocessing(size=(options.size, options.size))
        self.clip: int | None = options.frames
        size = options.feature_size if isinstance(options, TaggerOptions) else options.hidden
        outputs = {"rows": (size,), "tags": (len(self._word_ids),), "words": (len(self._word_ids),)}
        self.outputs: Mapping[str, tuple[int, ...]] = outputs | ({"grid": (GRID * GRID, size)} if small else {})
        self.video_outputs: Mapping[str, str] = {"words": "rows" if small else "tags"}

    def __call__(self, items: Tensor) -> dict[str, Tensor]:
        if isinstance(self._tagger, RangeTagger):
            rows = self._tagger.features(items)
            return {"rows": rows, "tags": self._tagger.words_of_keyframes(rows)[:, self._word_ids]}
        rows, cells = self._tagger.features_and_cells(items)
        return {"rows": rows, "grid": cells, "tags": self._tagger.words_of_positions(rows)[:, self._word_ids]}

    def video_output(self, output: str, rows: Tensor) -> Tensor:
        if isinstance(self._tagger, RangeTagger):
            return rows.mean(0)  # of the keyframes' probabilities
        return self._tagger.words_of_video(rows)[self._word_ids]


@lru_cache(_CACHED)
def open_net(spec: NetSpec) -> Net:
    """The net, loaded once per process."""
    if not spec.name:
        return Net(spec, _TaggerBackbone(Checkpoint.load(Path(spec.weights)), spec.only, spec.without))
    path: Path | None = None
    if spec.name in WEIGHTLESS:
        path = None
    elif spec.weights == "pretrained":
        known = WeightsFolder().find(canonical(spec.name))
        if known is None:
            raise BadInput(f"the pretrained weights of {spec.name} are not here; 'longtake weights list' says where they are")
        path = known.path
    elif spec.weights != "random":
        path = Path(spec.weights)
    try:
        backbone = open_backbone(spec.name, path, spec.seed)
        check_fitting(backbone)
        return Net(spec, backbone)
    except (WeightsUnavailable, ValueError) as error:
        raise BadInput(str(error)) from error
