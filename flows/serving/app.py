"""The web application: one page, and the API behind it."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Protocol
from uuid import uuid4

from fastapi import FastAPI, Query, Request
from fastapi.responses import JSONResponse
from fastapi.staticfiles import StaticFiles
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp

from flows.serving.schemas import MOST_CAPTIONS, CaptionAnswer, Limits, Refusal, RunMetadata
from flows.serving.security import SecurityMiddleware
from flows.serving.worker import WorkerDied, WorkerTimeout

PAGE = Path(__file__).with_name("page")
_BODY = {
    "requestBody": {"required": True, "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}
}


class CaptionBackend(Protocol):
    """What captions uploads: see flows/serving/worker.py."""

    metadata: dict[str, Any]

    async def start(self) -> None: ...

    async def ask(self, path: Path, n_best: int, frames: bool, seconds: float) -> dict[str, Any]: ...

    async def stop(self) -> None: ...


@dataclass
class Refused(Exception):
    """An upload that gets no caption: the HTTP status and a reason for people."""

    status: int
    reason: str


def make_app(worker: CaptionBackend, limits: Limits, names: Iterable[str] = ()) -> ASGIApp:
    """`names` are the host names that this server answers to, besides localhost and IP addresses."""
    uploads = Uploads(worker, limits)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        with tempfile.TemporaryDirectory(prefix="longtake-serve-") as folder:
            uploads.folder = Path(folder)
            yield
            await worker.stop()

    app = FastAPI(
        title="Longtake",
        description="Captions for videos and images.",
        version="1",
        openapi_url="/api/openapi.json",
        docs_url=None,  # FastAPI's own pages load scripts from elsewhere
        redoc_url=None,
        lifespan=lifespan,
    )

    @app.exception_handler(Refused)
    async def refused(_: Request, refusal: Refused) -> JSONResponse:
        headers = {"Connection": "close"} | ({"Retry-After": "5"} if refusal.status == 503 else {})
        return JSONResponse({"reason": refusal.reason}, refusal.status, headers)

    @app.get("/api/run", summary="Which run captions here, and what it accepts")
    async def run() -> RunMetadata:
        return RunMetadata(**worker.metadata, megabytes=limits.megabytes, seconds=limits.seconds, n_best=MOST_CAPTIONS)

    reasons = {413: "too large", 415: "no video or image", 503: "too many wait", 504: "took too long", 500: "failed"}

    @app.post(
        "/api/captions",
        summary="Caption the video or image in the request's body",
        responses={status: {"model": Refusal, "description": reason} for status, reason in reasons.items()},
        openapi_extra=_BODY,
    )
    async def captions(
        request: Request,
        n_best: Annotated[int, Query(ge=1, le=MOST_CAPTIONS, description="captions, best first")] = 3,
        frames: Annotated[bool, Query(description="send small pictures too")] = True,
    ) -> CaptionAnswer:
        return CaptionAnswer(**await uploads.caption(request, n_best, frames))

    app.mount("/", StaticFiles(directory=PAGE, html=True))
    return SecurityMiddleware(app, names)  # outermost, so that an error of ours has its headers too


class Uploads:
    """Uploads: counted when they arrive, kept as temporary files under random names, removed when they are answered."""

    def __init__(self, worker: CaptionBackend, limits: Limits) -> None:
        self._worker, self._limits = worker, limits
        self._active = 0
        self.folder = Path()

    async def caption(self, request: Request, n_best: int, frames: bool) -> dict[str, Any]:
        announced = request.headers.get("content-length", "0")
        if not announced.isdecimal() or int(announced) > self._limits.bytes:
            raise Refused(413, self._too_large())
        if self._active > self._limits.waiting:
            raise Refused(503, f"{self._active} uploads are under way; try again in some seconds")
        self._active += 1
        path = self.folder / uuid4().hex  # the name that the visitor gave it never becomes a path
        try:
            await self._receive(request, path)
            return await self._ask(path, n_best, frames)
        finally:
            self._active -= 1
            path.unlink(missing_ok=True)

    async def _receive(self, request: Request, path: Path) -> None:
        """The body, block by block, into a file; given up as soon as it is too much or nothing comes any more."""
        size, blocks = 0, aiter(request.stream())
        with path.open("wb") as file:
            while True:
                try:
                    async with asyncio.timeout(self._limits.stalled):
                        block = await anext(blocks, None)
                except TimeoutError:
                    raise Refused(408, f"nothing came for {self._limits.stalled:g} s; send it again") from None
                except ClientDisconnect:
                    raise Refused(400, "the upload broke off; send it again") from None
                if block is None:
                    break
                size += len(block)
                if size > self._limits.bytes:
                    raise Refused(413, self._too_large())
                file.write(block)
        if not size:
            raise Refused(415, "nothing was sent; put the video or image into the body of the request")

    async def _ask(self, path: Path, n_best: int, frames: bool) -> dict[str, Any]:
        try:
            answer = await self._worker.ask(path, n_best, frames, self._limits.seconds)
        except WorkerTimeout:
            reason = f"it took longer than {self._limits.seconds:g} s; send a shorter video, or use 'longtake caption'"
            raise Refused(504, reason) from None
        except WorkerDied:
            raise Refused(500, "the captioning process ended over this file; it cannot be captioned") from None
        if "refused" in answer:
            raise Refused(415, answer["refused"])
        if "failed" in answer:
            raise Refused(500, answer["failed"])
        return answer

    def _too_large(self) -> str:
        return f"it is larger than {self._limits.megabytes:g} MB; send a smaller file, or use 'longtake caption'"
