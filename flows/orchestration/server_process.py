"""The process of a Prefect server: `python -m flows.orchestration.server_process FD [dashboard]`.

It serves on a socket that the process which started it has bound, and ends when that process is gone. Without `dashboard`
it is Prefect's ephemeral app: the API and what records runs and events, without pages and without a scheduler."""

import socket
import sys

from flows.orchestration.process_lifetime import end_with_starter


def main() -> None:
    end_with_starter()  # first: importing Prefect takes seconds
    import uvicorn
    from prefect.server.api.server import create_app

    app = create_app(ephemeral="dashboard" not in sys.argv, final=True)
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="on"))
    server.run(sockets=[socket.socket(fileno=int(sys.argv[1]))])
    sys.exit(0 if server.started else 3)


if __name__ == "__main__":
    main()
