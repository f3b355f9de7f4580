"""The command `longtake serve`: a local page and HTTP API that caption what is dropped on them."""

from pathlib import Path
from typing import Annotated

import typer

from flows.cli.options import DEFAULT_WORKSPACE, WorkspaceOption, existing
from flows.cli.printing import err, out
from storage.errors import UsageError
from storage.workspace import Workspace

_ONLY_HERE = ("127.0.0.1", "localhost", "::1")


def serve(
    run: Annotated[
        str | None,
        typer.Argument(
            help="A run's id, its recipe's name, or an exported file; without it the newest finished run.", metavar="RUN"
        ),
    ] = None,
    workspace: WorkspaceOption = DEFAULT_WORKSPACE,
    host: Annotated[str, typer.Option(help="The address to listen at; by default only this machine can reach it.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port to listen at; 0 takes a free one.")] = 8642,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="A further name that this server may be called by. Repeatable.", metavar="NAME")
    ] = None,
    megabytes: Annotated[float, typer.Option(min=0.001, help="The largest upload.")] = 200,
    seconds: Annotated[float, typer.Option(min=1, help="The longest that one upload is worked on.")] = 120,
    waiting: Annotated[int, typer.Option(min=0, help="Uploads that may wait for their turn.")] = 16,
) -> None:
    """Serve a page to try a run: drop a video, see its frames, its caption, and where each word looked."""
    space = Workspace.open(workspace) if run and Path(run).is_file() else existing(workspace)
    import asyncio
    import socket

    from flows.serving.schemas import Limits
    from flows.serving.server import open_socket, serve_forever
    from flows.serving.worker import CaptionWorker

    limits = Limits(megabytes=megabytes, seconds=seconds, waiting=waiting)
    try:
        listening = open_socket(host, port)
    except (OSError, socket.gaierror) as error:
        raise UsageError(f"cannot listen at {host} port {port}: {error.strerror}; choose another --port or --host") from error

    def ready(metadata: dict[str, str], address: str) -> None:
        out.print_line(f"{metadata['recipe']} on {metadata['dataset']} (run {metadata['run']}) at [bold]{address}[/]")
        if host not in _ONLY_HERE:
            err.print("[yellow]anybody who can reach this machine can use it: there is no password[/]")
        err.print("[dim]Ctrl-C ends it[/]")

    err.print("[dim]loading the captioner[/]")
    worker = CaptionWorker(space.root, run, own_sample=host in _ONLY_HERE)
    asyncio.run(serve_forever(worker, limits, [host, *(allow_host or [])], listening, ready))
