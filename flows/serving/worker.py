"""The server's handle on the captioning process: started when needed, one upload at a time, killed when it takes too long."""

import asyncio
import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from storage.errors import LongtakeError, UsageError

_PROGRAM = """
import json, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
workspace, run, own_sample, sys.path[:] = json.loads(sys.argv[1])
from flows.serving.caption_process import main
main(workspace, run, own_sample)
"""
_START_SECONDS = 300.0  # loading torch on a busy machine
_LINE_BYTES = 64 * 2**20  # an answer holds thumbnails


class WorkerDied(Exception):
    """The process ended in the middle of an upload."""


class WorkerTimeout(Exception):
    """An upload took longer than it may."""


class CaptionWorker:
    """At most one process, so at most one model in memory."""

    def __init__(self, workspace: Path, run: str | None, own_sample: bool = True) -> None:
        """`own_sample`: whether visitors may see a clip of the data that the run was tested on."""
        self._arguments = (str(workspace), run, own_sample)
        self._process: asyncio.subprocess.Process | None = None
        self._lock = asyncio.Lock()
        self.metadata: dict[str, Any] = {}

    async def start(self) -> None:
        """Start the process; LongtakeError if the run cannot be used."""
        async with self._lock:
            await self._started()

    async def ask(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        """The captions of a file: `request` are the arguments of `caption_process.answer`. Requests wait for each other;
        `seconds` count from when this one starts."""
        async with self._lock:
            process = await self._started()
            assert process.stdin is not None and process.stdout is not None
            try:
                async with asyncio.timeout(seconds):
                    process.stdin.write(json.dumps(request).encode() + b"\n")
                    await process.stdin.drain()
                    line = await process.stdout.readline()
            except TimeoutError:
                await self._kill()
                raise WorkerTimeout from None
            except ConnectionError:
                line = b""
            except asyncio.CancelledError:  # the visitor has gone: the late answer must not go to the next one
                await self._kill()
                raise
            if not line:
                await self._kill()
                raise WorkerDied
            return json.loads(line)

    async def stop(self) -> None:
        async with self._lock:
            await self._kill()

    async def _started(self) -> asyncio.subprocess.Process:
        if self._process is not None and self._process.returncode is None:
            return self._process
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", _PROGRAM, json.dumps([*self._arguments, sys.path])),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=_LINE_BYTES,
        )
        self._process = process
        assert process.stdout is not None
        try:
            async with asyncio.timeout(_START_SECONDS):
                greeting = json.loads(await process.stdout.readline() or b'{"error": "the captioning process does not start"}')
        except TimeoutError:
            greeting = {"error": f"the captioning process does not start within {_START_SECONDS:g} s"}
        if "error" in greeting:
            await self._kill()
            raise (UsageError if greeting.get("usage") else LongtakeError)(greeting["error"])
        self.metadata = greeting
        return process

    async def _kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):
                process.kill()  # its decoders end by themselves once it is gone
            await process.wait()
