"""Shared by the storage tests: a real S3 server on this machine."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest


@pytest.fixture(scope="module")
def s3_server() -> Iterator[str]:
    """The address of an S3 server with a bucket named 'bucket'."""
    missing = [name for name in ("obstore", "moto", "flask") if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)} (obstore and moto[server])")
    from moto.server import ThreadedMotoServer

    running = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    with urlopen(Request(f"http://{host}:{port}/bucket", method="PUT")):
        pass
    yield f"http://{host}:{port}"
    running.stop()


@pytest.fixture
def url(s3_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A fresh prefix on the server, which the environment points to."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "longtake")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    return f"s3://bucket/{tmp_path.name}"
