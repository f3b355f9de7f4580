"""What this process may use of the machine's processors, and how the C library keeps its memory."""

import ctypes
import os
from contextlib import suppress
from functools import cache
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1  # of glibc's mallopt


def usable_cores() -> int:
    """Cores that this process may use: those that it may run on (taskset, cpusets), or fewer by a container's limit of time."""
    allowed, limit = allowed_cores(), cgroup_limit()
    return allowed if limit is None else max(1, min(allowed, round(limit)))


def allowed_cores() -> int:
    """Cores that the scheduler may put this process on."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        return os.cpu_count() or 1


def nvidia_cards() -> int:
    """GPUs that NVIDIA's driver shows, without asking torch."""
    return sum(1 for _ in Path("/proc/driver/nvidia/gpus").glob("*"))


@cache
def cgroup_limit() -> float | None:
    """Cores' worth of time that control groups leave to this process; None without a limit. A group's limit counts for all below
    it, so the least of them holds."""
    limits = []
    with suppress(OSError):  # no control groups
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, group = line.split(":", 2)
            if not controllers:  # version 2: one tree
                limits += _limits(_CGROUPS, group)
            elif "cpu" in controllers.split(","):
                limits += _limits(_CGROUPS / "cpu", group)
    return min(limits, default=None)


def _limits(tree: Path, group: str) -> list[float]:
    """The limits of a group and of all above it. Inside a container the group's own folder is often the tree's root."""
    folder = tree / group.lstrip("/")
    found = []
    for each in (folder, *folder.parents):
        with suppress(OSError, ValueError):  # no such file in this tree, or "max"
            quota, period = (each / "cpu.max").read_text().split()
            found.append(int(quota) / int(period))
        with suppress(OSError, ValueError):
            time, of = (int((each / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
            found += [time / of] if time > 0 else []
        if each == tree:
            break
    return found


@cache
def keep_freed_memory() -> None:
    """Let glibc keep large blocks that are freed: a net frees and asks for them at every layer, and what went back to the kernel
    costs a page fault for every 4 kB when it is used again."""
    with suppress(AttributeError, OSError):  # another C library, with another allocator
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(_MMAP_THRESHOLD, 1 << 30)
        libc.mallopt(_TRIM_THRESHOLD, 2**31 - 1)
