"""Reports over HTTP, on Prefect's own server: /longtake/<workspace>/<stage>/<key>. On its port a link needs no host, so it holds
on any port and through a tunnel, and what was written while no dashboard was up works once one is.

Only the pages of finished reports are served, of workspaces that have run on this Prefect folder. A page is sandboxed: to the
browser it is another site than the dashboard, whose API its scripts cannot reach."""

from pathlib import Path

import httpx
from prefect.client.orchestration import get_client
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from flows.orchestration.workspace_labels import labelled_workspaces
from flows.serving.security import SecurityMiddleware
from storage.errors import StorageError
from storage.runs import RunRecord
from storage.workspace import Workspace, read_done

PREFIX = "/longtake"
_STAGES = ("report", "compare_runs")
_PRESENT = "Longtake's reports"
_POLICY = (
    "sandbox allow-scripts; default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def report_app(home: Path) -> ASGIApp:
    """To be mounted at PREFIX."""

    def present(_: Request) -> Response:
        return PlainTextResponse(_PRESENT)

    def page(request: Request) -> Response:
        found = report_page(home, **request.path_params)
        if found is None:
            return PlainTextResponse("there is no such report; 'longtake report RUN' builds it again if it was removed", 404)
        return FileResponse(found, media_type="text/html")

    routes = [Route("/", present), Route("/{label}/{stage}/{key}", page)]
    return SecurityMiddleware(Starlette(routes=routes), policy=_POLICY)


def report_page(home: Path, label: str, stage: str, key: str) -> Path | None:
    """The page of a finished report in a workspace of this Prefect folder. Nothing that a name says leads out of it."""
    root = labelled_workspaces(home).get(label)
    if root is None or stage not in _STAGES:
        return None
    try:
        folder = Workspace(Path(root)).folder(stage, key)
        done = read_done(folder)
    except StorageError:
        return None
    page = (folder / "report.html").resolve()
    return page if done and page.is_file() and page.is_relative_to(Path(root).resolve()) else None


def report_link(run: RunRecord, label: str) -> str:
    """Where the dashboard's server has the report of a run, if it has one."""
    return "/".join((PREFIX, label, *run.stages["report"])) if run.report and "report" in run.stages else ""


def reports_are_served() -> bool:
    """Whether the Prefect server in use is one of ours, which serve reports."""
    with get_client(sync_client=True) as client:
        server = str(client.api_url).rstrip("/").removesuffix("/api")
    try:
        return httpx.get(f"{server}{PREFIX}/", timeout=5).text == _PRESENT
    except httpx.HTTPError:
        return False
