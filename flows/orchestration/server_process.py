"""The process of a Prefect server: `python -m flows.orchestration.server_process FD [dashboard]`.

It serves on a socket that the process which started it has bound, and ends when that process is gone. Without `dashboard`
it is Prefect's ephemeral app: the API and what records runs and events, without pages and without a scheduler. Beside the API
it has the reports of this machine's workspaces."""

import socket
import sys
from pathlib import Path

from flows.orchestration.process_lifetime import end_with_starter


def main() -> None:
    end_with_starter()  # first: importing Prefect takes seconds
    import uvicorn
    from prefect.server.api.server import create_app
    from prefect.settings import PREFECT_HOME, PREFECT_SERVER_API_AUTH_STRING
    from starlette.routing import Mount

    from flows.orchestration.report_server import PREFIX, report_app

    app = create_app(ephemeral="dashboard" not in sys.argv, final=True)
    if not PREFECT_SERVER_API_AUTH_STRING.value():  # Prefect's login guards its API alone: with one, no reports
        app.router.routes.insert(0, Mount(PREFIX, app=report_app(Path(PREFECT_HOME.value()))))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="on"))
    server.run(sockets=[socket.socket(fileno=int(sys.argv[1]))])
    sys.exit(0 if server.started else 3)


if __name__ == "__main__":
    main()
