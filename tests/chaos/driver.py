"""One pipeline through a deployment, started again until it is done; faults meanwhile; a log of both."""

from __future__ import annotations

import heapq
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import httpx

from tests.chaos.faults import FAULTS, OF_CLUSTER, Disk, Reads, Scene, Strike, look_around
from tests.chaos.results import rows_of
from tests.chaos.services import Site

LOST_AFTER = 30.0
"""seconds without a process after which a run that counts as running is taken for lost"""
PATIENCE = 2400.0
"""seconds that a pipeline may take at most"""
ARMED = 40.0
"""seconds that a fault waits for something to hit"""


@dataclass(frozen=True)
class Fault:
    """A fault that happened."""

    kind: str
    at: float
    pipeline: int
    during: str
    """stages that were being computed, or what else went on; empty if no run had a process"""


@dataclass
class Log:
    """What happened, printed as it happens."""

    began: float = field(default_factory=time.monotonic)
    faults: list[Fault] = field(default_factory=list)
    missed: Counter[str] = field(default_factory=Counter)

    def say(self, words: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {time.monotonic() - self.began:5.0f} s  {words}", flush=True)


class Chaos:
    """Draws faults and lets them happen, one after the other; each ends by itself. A pipeline that takes `pace` seconds in
    peace gets about eight of them in that time, and one in 40 s at least. They are drawn like cards, so that every kind comes."""

    def __init__(self, seed: int, log: Log, pace: float):
        self._draw, self._log, self._gap = random.Random(seed), log, (min(pace / 40, 5.0), min(pace / 5, 40.0))
        self._order, self._deck = count(), list[str]()
        self._heals: list[tuple[float, int, str, Callable[[], object]]] = []
        self._armed: tuple[str, Strike, float] | None = None
        self._next = time.monotonic() + self._draw.uniform(*self._gap)

    def tick(self, scene: Scene, pipeline: Pipeline) -> None:
        now = time.monotonic()
        self.heal(now)
        if self._armed is None and now >= self._next:
            kind = self._next_kind(pipeline)
            self._armed = (kind, FAULTS[kind][1], now + ARMED)
        if self._armed is None or any(kind == self._armed[0] for _, _, kind, _ in self._heals):
            return
        kind, strike, until = self._armed
        during = ", ".join(sorted(scene.stages)) or "the start of a run" if scene.flow else ""
        struck = strike(scene, self._draw)
        if struck is not None:
            self._log.say(f"  fault: {struck.words}; during {during or 'no run'}")
            self._log.faults.append(Fault(kind, now, pipeline.number, during))
            if struck.heal is not None:
                heapq.heappush(self._heals, (now + struck.seconds, next(self._order), kind, struck.heal))
        elif now < until:
            return
        else:
            self._log.missed[kind] += 1
        self._armed, self._next = None, now + self._draw.uniform(*self._gap)

    def _next_kind(self, pipeline: Pipeline) -> str:
        """The topmost card that is of any use here."""
        while True:
            for kind in self._deck:
                if kind not in OF_CLUSTER or pipeline.runner != "local":
                    self._deck.remove(kind)
                    return kind
            fresh = [kind for kind, (times, _) in FAULTS.items() for _ in range(times)]
            self._draw.shuffle(fresh)
            self._deck += fresh

    def heal(self, now: float) -> None:
        """End the faults whose time is up; with infinity, all."""
        while self._heals and self._heals[0][0] <= now:
            _, _, _, heal = heapq.heappop(self._heals)
            heal()


@dataclass
class Pipeline:
    """One pipeline, as a person or an automation sees it: run the deployment; if the run fails or is lost, run it again."""

    number: int
    site: Site
    deployment: str
    workspace: Path
    runner: str
    settings: list[str]
    log: Log
    runs: list[str] = field(default_factory=list)
    ended: Counter[str] = field(default_factory=Counter)
    """how its runs ended: completed, failed, crashed, lost"""
    rows: set[tuple[str, str, str]] = field(default_factory=set)
    """rows that were there at some moment"""
    gone: set[tuple[str, str, str]] = field(default_factory=set)
    """of these, the ones that were not there any more"""
    _to_start: bool = True
    _without: float = 0.0
    _asked: float = 0.0

    def tick(self, scene: Scene) -> bool:
        """True once it is done."""
        now = time.monotonic()
        if now < self._asked + 1:
            return False
        self._asked = now
        try:
            if self._to_start:
                self._start()
                return False
            answer = self.site.api.get(f"/flow_runs/{self.runs[-1]}")
            answer.raise_for_status()
        except httpx.HTTPError:
            return False
        state: dict[str, Any] = answer.json()["state"]
        kind = state["type"]
        self._without = 0.0 if scene.flow or kind not in ("RUNNING", "PENDING") else self._without or now
        if kind == "COMPLETED":
            self.ended["completed"] += 1
        elif kind in ("FAILED", "CRASHED", "CANCELLED"):
            self._again(kind.lower(), str(state["message"]))
        elif self._without and now - self._without > LOST_AFTER:
            self._again("lost", f"{kind.lower()} for the server, but it has no process")
        return kind == "COMPLETED"

    def watch_rows(self) -> None:
        """Rows that were published must stay. A read while segments are merged may miss some: then a second one counts."""
        there = self._rows_there()
        missed = self.rows - there
        self.gone |= missed - self._rows_there() if missed else set()
        self.rows |= there

    def _rows_there(self) -> set[tuple[str, str, str]]:
        return set(rows_of(self.workspace)) if self.workspace.is_dir() else set()

    def _start(self) -> None:
        wanted = {"parameters": {"workspace": str(self.workspace), "settings": self.settings}}
        answer = self.site.api.post(f"/deployments/{self.deployment}/create_flow_run", json=wanted)
        answer.raise_for_status()
        self.runs.append(answer.json()["id"])
        self._to_start, self._without = False, 0.0

    def _again(self, how: str, words: str) -> None:
        self.ended[how] += 1
        self.log.say(f"  run {len(self.runs)} {how}: {' '.join(words.split())[:300]}")
        self._to_start = True


def run_to_end(pipeline: Pipeline, reads: Reads | None, disk: Disk | None, chaos: Chaos | None) -> float:
    """Run a pipeline to its end, with faults if there are any; how many seconds it took."""
    began = time.monotonic()
    site, looked = pipeline.site, 0.0
    while True:
        site.supervise()
        scene = look_around(site, reads, disk, pipeline.workspace, pipeline.runs[-1] if pipeline.runs else "")
        if pipeline.tick(scene):
            return time.monotonic() - began
        if chaos is not None:
            chaos.tick(scene, pipeline)
        if time.monotonic() > looked + 2:
            pipeline.watch_rows()
            looked = time.monotonic()
        if time.monotonic() - began > PATIENCE:
            raise TimeoutError(f"pipeline {pipeline.number} is not done after {PATIENCE:.0f} s; see {site.place}")
        time.sleep(0.3)
