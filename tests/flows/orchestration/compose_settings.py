"""The Prefect server's settings of docker-compose.yml, for a test that runs its services without containers."""

from __future__ import annotations

import yaml

from tests import ROOT

LOGIN = "longtake:only-for-the-test"


def server_settings(postgres_port: int, redis_port: int) -> dict[str, str]:
    """The settings as the file has them, with this machine's ports and the login of the test."""
    named = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["x-server-settings"]
    settings = {}
    for name, value in named.items():
        value = value.replace("${POSTGRES_PASSWORD:?set it in .env}@postgres:5432", f"x@127.0.0.1:{postgres_port}")
        value = value.replace("redis://redis:6379", f"redis://127.0.0.1:{redis_port}")
        settings[name] = value.replace("${LONGTAKE_LOGIN:?set it in .env}", LOGIN)
    return settings | {"PREFECT_REDIS_MESSAGING_HOST": "127.0.0.1", "PREFECT_REDIS_MESSAGING_PORT": str(redis_port)}
