"""What stands before every request: only for our own name, only from our own page, and with headers that keep a browser safe."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Guard:
    """Refuses names that are not ours: a page elsewhere can make its own name lead here (DNS rebinding) and would then read
    all we say. An address in digits is nobody's name, so it cannot be used for that."""

    def __init__(self, app: ASGIApp, names: Iterable[str]) -> None:
        self.app = app
        self.names = {name.lower() for name in names} | {"localhost"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        reason = self._refused(Headers(scope=scope))
        if reason is None:
            await self.app(scope, receive, guarded)
        else:
            await JSONResponse({"reason": reason}, 403, {"Connection": "close"})(scope, receive, guarded)

    def _refused(self, headers: Headers) -> str | None:
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._is_ours(name := _hostname(f"//{hosts[0]}")):
            return "this server is not called that; open it by its address, or start it with --allow-host NAME"
        origin = headers.get("origin")
        if origin is not None and _hostname(origin) != name:
            return "a page from elsewhere may not ask this server"
        return None

    def _is_ours(self, name: str) -> bool:
        if name in self.names:
            return True
        try:
            ip_address(name)
        except ValueError:
            return False
        return True


def _hostname(url: str) -> str:
    try:
        return (urlsplit(url).hostname or "").lower()
    except ValueError:
        return ""
