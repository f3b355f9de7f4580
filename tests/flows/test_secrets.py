"""Keys and passwords of the environment: used, and never told, whatever fails; and nothing needs the rights of root."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from storage.errors import StorageError, TransientError, UsageError
from storage.features.object_store import ObjectStore
from tests.flows.command import TINY, command, environment_of
from tests.processes import unprivileged

KEY_ID, KEY, TOKEN, API_KEY, WORD = (f"marker{name}x9" for name in ("id", "key", "token", "api", "word"))
UNTIL = ("--until", "extract_features")


class _Refusing(BaseHTTPRequestHandler):
    """An S3 that refuses everything and repeats what it was sent, as some do."""

    def do_GET(self) -> None:
        said = f"<Error><Code>SignatureDoesNotMatch</Code><Message>{self.path} {self.headers}</Message></Error>".encode()
        self.send_response(403)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    do_PUT = do_HEAD = do_DELETE = do_GET  # noqa: N815

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def refusing_store() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def tell(said: str, *folders: Path) -> list[str]:
    """Where a secret stands: in what was said, or in any file of the folders."""
    secrets = [secret.encode() for secret in (KEY, TOKEN, API_KEY, WORD)]
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    assert files
    found = [str(path) for path in files if any(secret in path.read_bytes() for secret in secrets)]
    return found + (["what the command said"] if any(secret in said.encode() for secret in secrets) else [])


def test_keys_are_in_no_log_result_or_database_when_the_store_refuses_them(
    world: Path, prefect_home: Path, tmp_path: Path
) -> None:
    workspace, home = tmp_path / "w", tmp_path / "prefect"
    with refusing_store() as address:
        keys = {"AWS_ACCESS_KEY_ID": KEY_ID, "AWS_SECRET_ACCESS_KEY": KEY, "AWS_SESSION_TOKEN": TOKEN}
        keys |= {"AWS_ENDPOINT_URL": address, "AWS_REGION": "eu-west-1", "PREFECT_API_KEY": API_KEY}
        mine = environment_of(home, prefect_home, **keys)
        arguments = command("run", TINY, "--data", world, "-w", workspace, *UNTIL, "--verbose")
        bucket = ("--set", "runtime.feature_bucket=s3://bucket/prefix")
        done = subprocess.run([*arguments, *bucket], env=mine, capture_output=True, text=True, timeout=3600)
    assert done.returncode == 1 and "cannot read or write s3://bucket/prefix" in done.stderr, done.stderr
    assert (home / "prefect.db").is_file()
    assert "may be incomplete" not in done.stdout + done.stderr, "a key for another server keeps task runs from this one"
    assert tell(done.stdout + done.stderr, home, workspace) == []


def test_a_store_that_refuses_a_key_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with refusing_store() as address:
        for name, value in {"ENDPOINT_URL": address, "REGION": "eu-west-1", "ACCESS_KEY_ID": KEY_ID}.items():
            monkeypatch.setenv(f"AWS_{name}", value)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEY)
        with pytest.raises(StorageError, match="cannot read or write") as refused:
            ObjectStore("s3://bucket/prefix").folders("x")
    assert not isinstance(refused.value, TransientError), "it has answered: trying again does not help"
    assert KEY not in str(refused.value)


def test_a_login_in_an_address_is_refused_and_not_repeated(world: Path, tmp_path: Path) -> None:
    address = f"s3://{KEY_ID}:{WORD}@bucket/prefix"
    with pytest.raises(UsageError) as refused:
        ObjectStore(address)
    assert WORD not in str(refused.value) and "AWS_SECRET_ACCESS_KEY" in str(refused.value)
    done = subprocess.run(
        command("run", TINY, "--data", world, "-w", tmp_path / "w", "--set", f"runtime.feature_bucket={address}"),
        env=environment_of(tmp_path / "prefect"),
        capture_output=True,
        text=True,
        timeout=3600,
    )
    assert done.returncode == 2 and "must not carry a login" in done.stderr and WORD not in done.stderr


@pytest.mark.slow  # an embedded server is started three times
def test_a_database_that_cannot_be_reached_is_told_without_its_password(world: Path, tmp_path: Path) -> None:
    pytest.importorskip("asyncpg")
    mine = environment_of(
        tmp_path / "prefect", PREFECT_SERVER_DATABASE_CONNECTION_URL=f"postgresql+asyncpg://prefect:{WORD}@127.0.0.1:1/prefect"
    )
    done = subprocess.run(
        command("run", TINY, "--data", world, "-w", tmp_path / "w", *UNTIL),
        env=mine,
        capture_output=True,
        text=True,
        timeout=3600,
    )
    assert done.returncode == 1 and "embedded server ended 3 times while it started" in done.stderr, done.stderr
    assert tell(done.stdout + done.stderr, tmp_path / "prefect", tmp_path / "w") == []


@pytest.mark.slow
def test_a_run_with_its_server_needs_no_rights_of_root(world: Path, tmp_path: Path) -> None:
    drop = unprivileged()
    rights = subprocess.run([*drop, "cat", "/proc/self/status"], capture_output=True, text=True, check=True).stdout
    assert "CapEff:\t0000000000000000" in rights
    done = subprocess.run(
        [*drop, *command("run", TINY, "--data", world, "-w", tmp_path / "w", *UNTIL)],
        env=environment_of(tmp_path / "prefect", HOME=str(tmp_path)),
        capture_output=True,
        text=True,
        timeout=3600,
    )
    assert done.returncode == 0, done.stderr
