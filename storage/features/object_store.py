"""Objects on S3-like storage, few and simple: create one, get one, list and delete. Failures say what to check."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from storage.errors import StorageError, TransientError, UsageError
from storage.files.sanitising import has_login, without_login

if TYPE_CHECKING:
    from obstore.store import ObjectStore as ObstoreStore

# obstore's own pauses between tries are so short that ten of them are over within 2 s: less than a store takes to restart.
_PAUSES = {"init_backoff": timedelta(seconds=1), "max_backoff": timedelta(seconds=8), "base": 2}
RETRY: dict[str, Any] = {"max_retries": 12, "retry_timeout": timedelta(minutes=3), "backoff": _PAUSES}
_ANSWERED, _BEGINNING = re.compile(r".*?status code: \d+ [A-Za-z -]*"), re.compile(r"[^<]{0,300}")
_REFUSED = re.compile(r"status code: 4(?!08|29)\d\d")  # not 'too slow' and 'too many', which pass
_REMEDY = """check the bucket's name, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_ENDPOINT_URL, then run the same \
command: what was copied stays"""
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")


class ObjectInfo(NamedTuple):
    """An object: its path below the URL, its size, when it was put."""

    path: str
    size: int
    at: datetime


class ObjectStore:
    """What lies below one URL: s3://bucket/prefix (anything that speaks S3) or file:///folder.

    Credentials and endpoint come from the AWS_* variables of the environment. Safe to use from several threads."""

    def __init__(self, url: str):
        self.url = url.rstrip("/")
        self._store = _open(self.url)
        import obstore  # not with the others: it may not be installed, which _open explains

        self._api, self._errors = obstore, obstore.exceptions

    def create(self, path: str, data: bytes) -> bool:
        """Put an object unless there is one of this name -> whether it was put. Of two writers, one gets False."""
        with self._reaching():
            try:
                self._api.put(self._store, path, data, mode="create", use_multipart=False)
            except self._errors.AlreadyExistsError:
                return False
        return True

    def get(self, path: str) -> bytes | None:
        """The whole object, None if there is none."""
        with self._reaching():
            try:
                return bytes(self._api.get(self._store, path).bytes())
            except FileNotFoundError:
                return None

    def stream(self, path: str) -> Iterator[bytes]:
        """The object in blocks; FileNotFoundError if there is none."""
        try:
            with self._reaching(but=FileNotFoundError):
                for block in self._api.get(self._store, path).stream():
                    yield memoryview(block)  # type: ignore[misc]
        except FileNotFoundError:
            raise FileNotFoundError(f"{self.url}/{path}") from None

    def below(self, prefix: str) -> list[ObjectInfo]:
        """Every object below a prefix."""
        with self._reaching():
            batches = self._api.list(self._store, prefix, chunk_size=1000)
            return [ObjectInfo(e["path"], e["size"], e["last_modified"]) for batch in batches for e in batch]

    def folders(self, prefix: str | None = None) -> list[str]:
        """The common beginnings one level below a prefix, without their last slash."""
        with self._reaching():
            return list(self._api.list_with_delimiter(self._store, prefix)["common_prefixes"])

    def delete(self, paths: Sequence[str]) -> None:
        """Delete objects; those that are gone already are no error."""
        for path in paths:
            with self._reaching(), suppress(FileNotFoundError):
                self._api.delete(self._store, path)

    @contextmanager
    def _reaching(self, but: type[Exception] | tuple[()] = ()) -> Iterator[None]:
        try:
            yield
        except but:
            raise
        except (self._errors.BaseError, OSError) as error:
            # Anything but a clear answer: the store or the way to it, which may be there again in a while.
            unclear = isinstance(error, self._errors.GenericError) and not _REFUSED.search(str(error))
            kind = TransientError if unclear else StorageError
            line = str(error).split("\n", 1)[0].strip()
            reason = (_ANSWERED.match(line) or _BEGINNING.match(line))[0].strip()  # type: ignore[index]
            # `from None`: what the store answered may repeat what it was sent, keys included, and tracebacks go into logs
            raise kind(f"cannot read or write {self.url}: {reason}; {_REMEDY}") from None


def _open(url: str) -> ObstoreStore:
    if has_login(url):
        remedy = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY instead"
        raise UsageError(f"{without_login(url)} was given with a login in it; {remedy}")
    try:
        from obstore.exceptions import BaseError
        from obstore.store import from_url
    except ModuleNotFoundError:
        raise UsageError(f"{url} needs a package that is not installed; run: pip install 'longtake[s3]'") from None
    scheme = url.partition("://")[0]
    try:
        if scheme == "file":
            return from_url(url, mkdir=True)
        if scheme == "s3":
            plain = any(os.environ.get(name, "").startswith("http://") for name in _ENDPOINTS)
            client = {"allow_http": plain, "connect_timeout": "10s", "timeout": "600s"}
            return from_url(url, client_options=client, retry_config=RETRY)  # type: ignore[call-overload]
    except (BaseError, ValueError, OSError) as error:
        raise UsageError(f"cannot use {url}: {str(error).splitlines()[0]}; give s3://bucket/prefix") from error
    raise UsageError(f"cannot keep features at '{url}'; give s3://bucket/prefix or file:///folder")
