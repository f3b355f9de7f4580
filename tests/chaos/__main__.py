"""python -m tests.chaos --minutes 20 --seed 1

Runs a small pipeline of the demo world undisturbed and keeps what it made. Then runs it again and again, in new workspaces, while
at random moments processes are killed, services go away, the disk is full and reads fail or hang. What comes out must be the
same, bit for bit. Exit code 1 if anything differs or was lost."""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path
from uuid import uuid4

import yaml

from storage.datasets.demo import DemoOptions, draw_world
from tests.chaos.driver import Chaos, Log, Pipeline, run_to_end
from tests.chaos.faults import FAULTS, Disk, Reads, flow_run_of
from tests.chaos.results import Results, differences, results, results_of_bucket, rows_of
from tests.chaos.services import Site, wait_until
from tests.tasks.process_family import Member, family

HERE = Path(__file__).parent
RECIPE = HERE / "chaos.yaml"
DISK = "size=64m"
RUNNERS = ["dask", "local"]
"""of the pipelines, in turn"""


def small_disk(place: Path, stack: ExitStack, log: Log) -> Disk | None:
    """A small disk for the workspaces, if we may mount one."""
    root = place / "disk"
    root.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", DISK, "tmpfs", str(root)], capture_output=True).returncode:
        log.say("the disk is not filled: mounting a small one is not allowed here")
        return None
    stack.callback(subprocess.run, ["umount", "-l", str(root)], check=True)
    return Disk(root)


def disturbed_reads(place: Path, videos: Path, log: Log) -> Reads | None:
    """The library that disturbs reads, if there is a C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        log.say("reads are not disturbed: no C compiler here")
        return None
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(place / "reads.so"), str(HERE / "reads.c"), "-ldl"]
    subprocess.run(command, check=True)
    return Reads(place, videos)


def deploy(site: Site, world: Path, workspace: Path) -> str:
    command = [sys.executable, "-m", "flows.cli", "deploy", "--recipe", RECIPE, "--data", world, "-w", workspace]
    subprocess.run(list(map(str, command)), env=site.client, check=True, stdout=subprocess.DEVNULL)
    found = site.api.get("/deployments/name/pipeline/chaos")
    found.raise_for_status()
    return str(found.json()["id"])


def chaos(minutes: float, seed: int, place: Path, log: Log) -> int:
    world, mark = place / "world", uuid4().hex
    draw_world(world, DemoOptions(**yaml.safe_load(RECIPE.read_text())["dataset"]), workers=2)
    with ExitStack() as stack:
        disk = small_disk(place, stack, log)
        reads = disturbed_reads(place, world / "videos", log)
        site = Site(place, mark, reads.environment if reads else {})
        os.environ.update(site.bucket)  # for what this process reads from the bucket
        stack.callback(put_away, site)
        site.start()
        log.say(f"Postgres, Redis, Prefect, an object store: up; seed {seed}; logs in {place}")
        spaces = disk.root if disk else place
        deployment = deploy(site, world, spaces / "undisturbed")

        def pipeline(number: int, runner: str) -> Pipeline:
            settings = [f"runtime.feature_bucket=s3://bucket/p{number}-", f"runtime.runner={runner}"]
            return Pipeline(number, site, deployment, spaces / f"w{number}", runner, settings, log)

        calm = pipeline(0, "local")
        took = run_to_end(calm, reads, disk, None)
        expected, in_bucket = results(calm.workspace), results_of_bucket("s3://bucket/p0-")
        assert calm.ended == {"completed": 1} and in_bucket, "the undisturbed run itself was disturbed"
        rows = len(rows_of(calm.workspace))
        log.say(f"undisturbed: {took:.0f} s, {len(expected)} results, {rows} feature rows")
        shutil.rmtree(calm.workspace)

        log.began, end = time.monotonic(), time.monotonic() + 60 * minutes
        trouble, done, wrong = Chaos(seed, log, took), [], 0
        twice, gone = 0, 0
        stack.callback(lambda: summary(log, done, wrong, gone, twice, reads.hits if reads else 0))
        while time.monotonic() < end:
            one = pipeline(len(done) + 1, RUNNERS[len(done) % len(RUNNERS)])
            log.say(f"pipeline {one.number} ({one.runner})")
            took = run_to_end(one, reads, disk, trouble)
            trouble.heal(float("inf"))
            wait_until("the end of its other runs", lambda: not runs_left(mark))
            wait_until("the object store", lambda: site.supervise() or site.store.ready)
            lines = compare(one, expected, in_bucket)
            one.watch_rows()
            wrong, gone = wrong + len(lines), gone + len(one.gone)
            twice += sum(n - 1 for n in rows_of(one.workspace).values())
            ended = ", ".join(f"{n} {how}" for how, n in one.ended.items() if n)
            log.say(f"pipeline {one.number} done in {took:.0f} s; runs: {ended}; differences: {len(lines)}")
            for line in lines:
                log.say(f"  DIFFERENT {line}")
            done.append(one)
            if lines:
                shutil.copytree(one.workspace, place / f"different-{one.number}")
            shutil.rmtree(one.workspace)
            site.store.forget(f"p{one.number}-")
        site.stop()
        wait_until("the end of all processes", lambda: not family(mark), 60)
    return 1 if wrong or gone or not done else 0


def put_away(site: Site) -> None:
    """Stop everything, runs too that are still at work if we were broken off."""
    site.stop()
    for member in family(site.mark):
        with suppress(ProcessLookupError):
            os.kill(member.pid, signal.SIGKILL)


def runs_left(mark: str) -> list[Member]:
    """Processes of flow runs: one whose start was not acknowledged may have been started twice."""
    return [member for member in family(mark) if flow_run_of(member)]


def compare(one: Pipeline, expected: Results, in_bucket: Results) -> list[str]:
    there = differences(in_bucket, results_of_bucket(f"s3://bucket/p{one.number}-"))
    return differences(expected, results(one.workspace)) + [f"bucket: {line}" for line in there]


def summary(log: Log, done: list[Pipeline], wrong: int, gone: int, twice: int, hits: int) -> None:
    """What happened so far; printed too when the run is broken off."""
    counted, at_work = Counter(f.kind for f in log.faults), Counter(f.kind for f in log.faults if f.during)
    print(f"\n{'fault':<28} {'times':>6} {'at work':>8} {'no target':>10}")
    for kind in FAULTS:
        print(f"{kind:<28} {counted[kind]:>6} {at_work[kind]:>8} {log.missed[kind]:>10}")
    print(f"{'all':<28} {sum(counted.values()):>6} {sum(at_work.values()):>8} {sum(log.missed.values()):>10}")
    ended = sum((one.ended for one in done), Counter())
    again = sum(len(one.runs) - 1 for one in done)
    print(f"\npipelines completed          {len(done)}")
    print(f"runs started again           {again} ({', '.join(f'{n} {how}' for how, n in ended.items() if n)})")
    print(f"reads that failed or hung    {hits}")
    print(f"published rows lost          {gone}")
    print(f"published rows made twice    {twice}")
    print(f"differences                  {wrong}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20, help="how long faults go on; the last pipeline is finished")
    parser.add_argument("--seed", type=int, default=None, help="of what happens; drawn and printed if not given")
    parser.add_argument("--place", type=Path, help="a new folder for everything; else a temporary one")
    given = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if given.seed is None else given.seed
    place = given.place or Path(tempfile.mkdtemp(prefix="chaos-"))
    place.mkdir(parents=True, exist_ok=True)
    place.chmod(0o755)  # Postgres runs as another user
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that every service is ended
    code = chaos(given.minutes, seed, place, Log())
    if given.place is None and code == 0:
        shutil.rmtree(place)
    return code


if __name__ == "__main__":
    sys.exit(main())
