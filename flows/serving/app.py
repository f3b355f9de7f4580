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
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse
from fastapi.staticfiles import StaticFiles
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp

from flows.serving.form import HEAD_BYTES, BadForm, FormFile
from flows.serving.schemas import MOST_CAPTIONS, TEXT_FORMATS, AnswerFormat, CaptionAnswer, Limits, Refusal, RunMetadata
from flows.serving.security import SecurityMiddleware
from flows.serving.worker import WorkerDied, WorkerTimeout
from storage.text.caption_writers import SUBTITLES

PAGE = Path(__file__).with_name("page")
LOOK = ("tasks.reporting", "look")
"""what the page shares with reports"""
_FILE = {"type": "string", "format": "binary"}
_FORM = {"type": "object", "properties": {"file": _FILE}, "required": ["file"]}
_BODY = {
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": _FILE}, "multipart/form-data": {"schema": _FORM}},
    }
}
_REASONS = {400: "no form with one file", 413: "too large", 415: "no video or image"}
_REASONS |= {503: "too many wait", 504: "took too long", 500: "failed"}
_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"content": {media_type: {"schema": {"type": "string"}} for media_type in TEXT_FORMATS.values()}},
    **{status: {"model": Refusal, "description": reason} for status, reason in _REASONS.items()},
}


class CaptionBackend(Protocol):
    """What captions uploads: see flows/serving/worker.py."""

    metadata: dict[str, Any]

    async def start(self) -> None: ...

    async def ask(self, request: dict[str, Any], seconds: float) -> dict[str, Any]: ...

    async def stop(self) -> None: ...


@dataclass
class Refused(Exception):
    """An upload that gets no caption: the HTTP status and a reason for people."""

    status: int
    reason: str


def make_app(worker: CaptionBackend, limits: Limits, names: Iterable[str] = ()) -> ASGIApp:
    """`names` are the host names that this server answers to, besides localhost and IP addresses."""
    uploads = Uploads(worker, limits)
    sample: dict[str, Any] = {}

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        with tempfile.TemporaryDirectory(prefix="longtake-serve-") as folder:
            uploads.folder = Path(folder)
            sample.update(worker.metadata.get("sample") or _drawn_clip(uploads.folder))
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

    @app.exception_handler(BadForm)
    async def bad_form(request: Request, bad: BadForm) -> JSONResponse:
        return await refused(request, Refused(400, str(bad)))

    @app.get("/api/run", summary="Which run captions here, and what it accepts")
    async def run() -> RunMetadata:
        metadata = worker.metadata | {"sample": sample}
        return RunMetadata(**metadata, megabytes=limits.megabytes, seconds=limits.seconds, n_best=MOST_CAPTIONS)

    @app.get("/api/sample", summary="A clip to try the captioner on", response_class=FileResponse)
    async def sample_clip() -> FileResponse:
        return FileResponse(sample["path"])

    @app.post(
        "/api/captions",
        summary="Caption the video or image in the request's body, or in its form",
        responses=_RESPONSES,
        response_model=CaptionAnswer,
        openapi_extra=_BODY,
    )
    async def captions(
        request: Request,
        n_best: Annotated[int, Query(ge=1, le=MOST_CAPTIONS, description="captions of each clip")] = 3,
        frames: Annotated[bool, Query(description="send small pictures too")] = True,
        shots: Annotated[bool, Query(description="cut a film at its shot changes; srt and vtt do so by themselves")] = False,
        format: Annotated[AnswerFormat, Query(description="what is answered")] = "json",
    ) -> dict[str, Any] | PlainTextResponse:
        options = {"n_best": n_best, "frames": frames and format == "json", "shots": shots or format in SUBTITLES}
        answer = await uploads.caption(request, options)
        return answer if format == "json" else PlainTextResponse(answer["texts"][format], media_type=TEXT_FORMATS[format])

    app.mount("/", StaticFiles(directory=PAGE, packages=[LOOK], html=True))
    return SecurityMiddleware(app, names)  # outermost, so that an error of ours has its headers too


def _drawn_clip(folder: Path) -> dict[str, Any]:
    from flows.serving.sample import drawn_clip  # it brings an encoder, which few servers need

    return drawn_clip(folder)


class Uploads:
    """Uploads: counted when they arrive, kept as temporary files under random names, removed when they are answered."""

    def __init__(self, worker: CaptionBackend, limits: Limits) -> None:
        self._worker, self._limits = worker, limits
        self._active = 0
        self.folder = Path()

    async def caption(self, request: Request, options: dict[str, Any]) -> dict[str, Any]:
        """The answer to the file in the request; `options` as in `caption_process.answer`."""
        announced, kind = request.headers.get("content-length", "0"), request.headers.get("content-type", "")
        form = FormFile(kind) if kind.lower().startswith("multipart/form-data") else None
        if not announced.isdecimal() or int(announced) > self._limits.bytes + (2 * HEAD_BYTES if form else 0):
            raise Refused(413, self._too_large())
        if self._active > self._limits.waiting:
            raise Refused(503, f"{self._active} uploads are under way; try again in some seconds")
        self._active += 1
        path = self.folder / uuid4().hex  # the name that the visitor gave it never becomes a path
        try:
            await self._receive(request, form, path)
            return await self._ask({"path": str(path), "name": form.name if form and form.name else "upload", **options})
        finally:
            self._active -= 1
            path.unlink(missing_ok=True)

    async def _receive(self, request: Request, form: FormFile | None, path: Path) -> None:
        """The file of the body or of its form, block by block; given up as soon as it is too much."""
        size, blocks = 0, self._blocks(request)
        with path.open("wb") as file:
            async for block in form.read(blocks) if form else blocks:
                size += len(block)
                if size > self._limits.bytes:
                    raise Refused(413, self._too_large())
                file.write(block)
        if not size:
            raise Refused(415, "nothing was sent; put the video or image into the body of the request")

    async def _blocks(self, request: Request) -> AsyncIterator[bytes]:
        """The body, block by block; given up when nothing comes any more."""
        blocks = aiter(request.stream())
        while True:
            try:
                async with asyncio.timeout(self._limits.stalled):
                    block = await anext(blocks, None)
            except TimeoutError:
                raise Refused(408, f"nothing came for {self._limits.stalled:g} s; send it again") from None
            except ClientDisconnect:
                raise Refused(400, "the upload broke off; send it again") from None
            if block is None:
                return
            yield block

    async def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            answer = await self._worker.ask(request, self._limits.seconds)
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
