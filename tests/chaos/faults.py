"""The faults: what each does, to what, and how it ends. All come from outside; Longtake's code does not know of them."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.services import Service, Site
from tests.tasks.process_family import Member, family

READING = {"catalogue", "train_tagger", "extract_features", "report"}
"""stages that read videos"""


@dataclass(frozen=True)
class Struck:
    """A fault that happened: in words, and how it ends by itself after some seconds."""

    words: str
    seconds: float = 0.0
    heal: Callable[[], object] | None = None


class Reads:
    """Makes reads of videos fail or hang, by the library made of reads.c."""

    def __init__(self, place: Path, videos: Path):
        self._control, self._videos = place / "reads", videos
        self._hits = place / "reads.hits"
        self.environment = {"CHAOS_READS": str(self._control), "LD_PRELOAD": str(place / "reads.so")}

    def begin(self, letter: str) -> None:
        fresh = self._control.with_suffix(".new")
        fresh.write_text(f"{letter}{self._videos}")
        fresh.replace(self._control)

    def end(self) -> None:
        self._control.unlink(missing_ok=True)

    @property
    def hits(self) -> int:
        return self._hits.stat().st_size if self._hits.exists() else 0


class Disk:
    """The small disk that workspaces are on."""

    def __init__(self, root: Path):
        self.root = root
        self._ballast = root / "ballast"

    def fill(self) -> int:
        """Leave no room; how many bytes that took."""
        size = 0
        with self._ballast.open("wb", buffering=0) as file, suppress(OSError):  # that it is full is what is wanted
            for block in (2**20, 4096, 1):
                with suppress(OSError):
                    while True:
                        size += file.write(bytes(block))
        return size

    def free(self) -> None:
        self._ballast.unlink(missing_ok=True)


@dataclass
class Scene:
    """What there is to hit at this moment."""

    site: Site
    reads: Reads | None
    disk: Disk | None
    workspace: Path
    run: str
    """id of the flow run"""
    members: list[Member]

    @property
    def stages(self) -> set[str]:
        """Stages that are being made."""
        folders = self.workspace.glob("artifacts/*/*")
        return {folder.parent.name for folder in folders if not (folder / "done.json").exists()}

    @property
    def flow(self) -> Member | None:
        """The process of the flow run, if it lives."""
        mine = [member for member in self.members if flow_run_of(member) == self.run]
        pids = {member.pid for member in mine}
        return next((member for member in mine if member.parent not in pids), None)

    @property
    def decoders(self) -> list[Member]:
        return [member for member in self.members if member.is_decoder]

    @property
    def cluster(self) -> list[Member]:
        """Dask's workers: those in the middle of a shard, if there are any."""
        workers = [member for member in self.members if member.is_worker]
        parents = {member.parent for member in self.decoders}
        return [member for member in workers if member.pid in parents] or workers


def look_around(
    site: Site, reads: Reads | None, disk: Disk | None, workspace: Path, run: str, members: list[Member] | None = None
) -> Scene:
    return Scene(site, reads, disk, workspace, run, family(site.mark) if members is None else members)


def flow_run_of(member: Member) -> str:
    try:
        environment = Path(f"/proc/{member.pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return ""
    found = [entry for entry in environment if entry.startswith(b"PREFECT__FLOW_RUN_ID=")]
    return found[0].partition(b"=")[2].decode() if found else ""


Strike = Callable[[Scene, random.Random], Struck | None]


def _signal(member: Member, number: signal.Signals) -> bool:
    try:
        os.kill(member.pid, number)
    except ProcessLookupError:
        return False
    return True


def kill_flow(scene: Scene, draw: random.Random) -> Struck | None:
    flow = scene.flow
    return Struck(f"kill -9 of the flow run's process {flow.pid}") if flow and _signal(flow, signal.SIGKILL) else None


def kill_worker(scene: Scene, draw: random.Random) -> Struck | None:
    if not scene.site.worker.alive:
        return None
    return Struck(f"kill -9 of the worker {scene.site.worker.kill(draw.uniform(0, 5))}")


def kill_both(scene: Scene, draw: random.Random) -> Struck | None:
    flow = scene.flow
    if flow is None or not scene.site.worker.alive:
        return None
    pid = scene.site.worker.kill(draw.uniform(0, 5))
    _signal(flow, signal.SIGKILL)
    return Struck(f"kill -9 of the worker {pid} and the flow run's process {flow.pid}, as when a machine is lost")


def kill_decoder(scene: Scene, draw: random.Random) -> Struck | None:
    if not scene.decoders:
        return None
    hit = draw.choice(scene.decoders)
    return Struck(f"kill -9 of the decoder {hit.pid}") if _signal(hit, signal.SIGKILL) else None


def stop_decoder(scene: Scene, draw: random.Random) -> Struck | None:
    if not scene.decoders:
        return None
    hit, seconds = draw.choice(scene.decoders), draw.uniform(5, 40)
    if not _signal(hit, signal.SIGSTOP):
        return None
    return Struck(f"decoder {hit.pid} hangs", seconds, lambda: _signal(hit, signal.SIGCONT))


def kill_cluster_worker(scene: Scene, draw: random.Random) -> Struck | None:
    if not scene.cluster:
        return None
    hit = draw.choice(scene.cluster)
    return Struck(f"kill -9 of the Dask worker {hit.pid}") if _signal(hit, signal.SIGKILL) else None


def kill_service(choose: Callable[[Site], Service], name: str, longest: float) -> Strike:
    def strike(scene: Scene, draw: random.Random) -> Struck | None:
        service = choose(scene.site)
        if not service.alive or scene.flow is None:
            return None
        seconds = draw.uniform(0, longest)
        return Struck(f"kill -9 of {name} {service.kill(seconds)}, away for {seconds:.0f} s and its start")

    return strike


def kill_store(scene: Scene, draw: random.Random) -> Struck | None:
    store = scene.site.store
    if not store.ready or "extract_features" not in scene.stages or scene.flow is None:
        return None
    seconds = draw.uniform(0, 15)
    store.network.down()
    return Struck(f"kill -9 of the object store {store.kill(seconds)}, away for {seconds:.0f} s and its start")


def pause_store(scene: Scene, draw: random.Random) -> Struck | None:
    store = scene.site.store
    if not store.ready or "extract_features" not in scene.stages or scene.flow is None:
        return None
    process, seconds = store.process, draw.uniform(3, 15)
    assert process is not None
    process.send_signal(signal.SIGSTOP)
    return Struck(f"the object store hangs for {seconds:.0f} s", seconds, lambda: process.send_signal(signal.SIGCONT))


def cut_network(scene: Scene, draw: random.Random) -> Struck | None:
    if not scene.site.store.ready or "extract_features" not in scene.stages or scene.flow is None:
        return None
    cut = scene.site.store.network.cut()
    return Struck(f"{cut} connections to the object store reset") if cut else None


def fill_disk(scene: Scene, draw: random.Random) -> Struck | None:
    if scene.disk is None or scene.flow is None:
        return None
    seconds = draw.uniform(3, 20)
    return Struck(f"the disk is full for {seconds:.0f} s ({scene.disk.fill():,} bytes)", seconds, scene.disk.free)


def disturb_reads(letter: str, what: str, longest: float) -> Strike:
    def strike(scene: Scene, draw: random.Random) -> Struck | None:
        if scene.reads is None or scene.flow is None or not scene.stages & READING:
            return None
        seconds = draw.uniform(1, longest)
        scene.reads.begin(letter)
        return Struck(f"reads of videos {what} for {seconds:.0f} s", seconds, scene.reads.end)

    return strike


FAULTS: dict[str, tuple[int, Strike]] = {
    "flow killed": (3, kill_flow),
    "worker killed": (2, kill_worker),
    "worker and flow killed": (1, kill_both),
    "decoder killed": (3, kill_decoder),
    "decoder hangs": (1, stop_decoder),
    "Dask worker killed": (2, kill_cluster_worker),
    "Prefect server killed": (2, kill_service(lambda site: site.server, "Prefect's server", 10)),
    "background services killed": (1, kill_service(lambda site: site.background, "Prefect's background services", 10)),
    "Postgres killed": (2, kill_service(lambda site: site.postgres, "Postgres", 8)),
    "Redis killed": (1, kill_service(lambda site: site.redis, "Redis", 8)),
    "object store killed": (2, kill_store),
    "object store hangs": (1, pause_store),
    "network cut": (2, cut_network),
    "disk full": (2, fill_disk),
    "reads fail": (3, disturb_reads("f", "fail", 10)),
    "reads hang": (2, disturb_reads("h", "hang", 45)),
}
"""kind -> how often it is drawn, against the others, and what it does"""
OF_CLUSTER = {"Dask worker killed"}
"""kinds that only pipelines on a cluster know"""
