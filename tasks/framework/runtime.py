"""How a run uses the machine. Nothing here is part of any key: it changes how fast a result comes, not which."""

import os
from typing import Literal

from pydantic import Field, field_validator

from storage.errors import UsageError
from storage.files.sanitising import has_login
from storage.machine import keep_freed_memory, nvidia_cards, usable_cores
from storage.options import Options

MOST_TRAINING_THREADS = 4
"""A captioner's products are small: more threads wait for each other longer than they compute."""
_BATCH_ON_CPU, _PER_GIGABYTE, _MOST_ON_GPU = 16, 8, 256  # frames


class Runtime(Options):
    """Where and how stages run."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto takes the GPU when there is one"""
    threads: int = Field(0, ge=0)
    """CPU threads: of torch in training, and of each net process; 0 chooses ('longtake doctor' says what): one for each net
    process, a few in training. Training is bit-identical only for equal thread counts"""
    net_processes: int | None = Field(None, ge=0)
    """processes that run the nets of features on CPUs; 0 runs them in this process. Left out: as many as there are cores to use
    (a container's limit counts). Rows do not depend on it"""
    engine: Literal["auto", "torch", "openvino"] = "auto"
    """what runs the nets of features: auto takes OpenVINO on this machine's CPU and torch on a GPU or a cluster elsewhere. They
    differ by rounding; the rows of one store are all made by one engine"""
    gpus: int | Literal["auto"] = "auto"
    """GPUs of this machine that extract features, with a process each; auto takes all"""
    precision: Literal["auto", "float32", "tf32", "float16", "bfloat16"] = "auto"
    """of backbones on a GPU; auto is float16 there and float32 on the CPU. tf32 is float32 with products of ten bits. Rows are
    kept as float16 either way"""
    batch: int | None = Field(None, ge=1)
    """how much goes through a backbone together, in frames of 224 x 224 pixels: 4 clips of 16 frames of 112 x 112 count as 16.
    Left out: 16 on a CPU; on a GPU 8 for each GiB of its memory, 256 at most"""
    decoders: int = Field(default_factory=lambda: min(usable_cores(), usable_cores() if nvidia_cards() else 4), ge=0)
    """decoder processes; 0 decodes in this process. Left out: 4 at most, or beside a GPU, which waits for them, one per core"""
    decode_timeout: float = Field(120.0, gt=0)
    """seconds after which a decoder that does not answer is stopped and its video quarantined"""
    concurrency_limit: str = ""
    """a Prefect global concurrency limit, such as longtake-gpu: a stage that uses the device holds one of its slots"""
    feature_bucket: str = ""
    """an s3://bucket/prefix that feature stores are kept in as well: rows that it has are not extracted again"""
    runner: Literal["local", "dask", "ray"] = "local"
    """where features are extracted: in this process, or in shards on a Dask or Ray cluster"""
    address: str = ""
    """address of a cluster that runs already (needs PREFECT_API_URL); empty starts one of `workers` processes on this machine"""
    workers: int = Field(2, ge=1)
    """processes of a cluster that is started for the run"""
    shard: int = Field(64, ge=1)
    """videos in a shard: what a lost worker costs at most"""
    retry_quarantined: bool = False
    """try again the videos that extraction could not read before"""

    training_precision: Literal["float32", "tf32", "bfloat16"] = "bfloat16"
    """of training on a GPU: bfloat16 where torch finds it safe, weights stay float32; on the CPU always float32"""
    deterministic: bool = False
    """only algorithms that give the same bits every time: a training on a GPU can then be resumed to the bit, and is slower"""
    nproc: int = Field(1, ge=1)
    """processes that train a captioner together on this machine, each with a part of every batch and, on GPUs, one of its own"""
    checkpoints: int = Field(2, ge=1)
    """last checkpoints of a training that are kept while it runs; beside them the weights of its best epoch, which stay"""

    @field_validator("feature_bucket", "address")
    @classmethod
    def _no_secrets(cls, url: str) -> str:
        """A recipe is kept with every run and shown in the dashboard."""
        if has_login(url):
            reason = "an address in a recipe must not carry a login: it would be kept and shown with every run"
            raise ValueError(f"{reason}; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment")
        return url

    @property
    def net_count(self) -> int:
        """Processes that run nets on this machine's CPU."""
        return usable_cores() if self.net_processes is None else self.net_processes

    @property
    def training_threads(self) -> int:
        """CPU threads of each process that trains."""
        return self.threads or max(1, min(MOST_TRAINING_THREADS, usable_cores() // self.nproc))

    def batch_on(self, device: str) -> int:
        """`batch`, or what fits the device."""
        if self.batch is not None or device == "cpu":
            return self.batch or _BATCH_ON_CPU
        import torch

        gigabytes = torch.cuda.get_device_properties(device).total_memory >> 30
        return max(_BATCH_ON_CPU, min(_MOST_ON_GPU, _PER_GIGABYTE * gigabytes))

    def gpu_count(self) -> int:
        """GPUs that extract features here; 0 on a CPU."""
        import torch

        there = torch.cuda.device_count() if self.torch_device() == "cuda" else 0
        if self.gpus == "auto" or not there:
            return there
        if not 1 <= self.gpus <= there:
            raise UsageError(f"runtime.gpus is {self.gpus} and torch finds {there} here; set it to auto, or to 1 up to {there}")
        return self.gpus

    def torch_device(self) -> str:
        """The device's name for torch; sets torch's threads, precision, determinism, and how memory is kept, on the way. A GPU
        that is not there is refused."""
        import torch

        keep_freed_memory()
        torch.set_num_threads(self.training_threads)
        there = torch.cuda.device_count() if self.device != "cpu" and torch.cuda.is_available() else 0
        if self.device == "cpu" or (self.device == "auto" and not there):
            device = "cpu"
        elif not there:
            remedy = "set it to auto or cpu, or look at the driver: 'longtake doctor' shows what torch finds"
            raise UsageError(f"runtime.device is cuda, but torch finds no GPU here; {remedy}")
        elif self.nproc > there:
            reason = f"runtime.nproc is {self.nproc}, each with a GPU of its own, and torch finds {there}"
            raise UsageError(f"{reason}; lower runtime.nproc, or set runtime.device to cpu")
        else:
            device = "cuda"
            allow_tf32(self.training_precision == "tf32")  # else torch would take it for convolutions by itself
        if self.deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when the first product is computed
            torch.use_deterministic_algorithms(True)
            torch.backends.cudnn.benchmark = False
        return device


def allow_tf32(allowed: bool) -> None:
    """Whether products and convolutions of float32 numbers may round them to ten bits first, on GPUs that can."""
    import torch

    torch.set_float32_matmul_precision("high" if allowed else "highest")
    torch.backends.cudnn.allow_tf32 = allowed
