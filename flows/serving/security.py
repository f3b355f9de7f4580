"""Middleware around every request: only our own host names, only our own page as origin, and headers that keep a browser safe."""

from collections.abc import Iterable
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

PAGE_POLICY = (  # blob: is a visitor's own file, shown by their browser
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; media-src blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class SecurityMiddleware:
    """Refuses foreign host names: a page elsewhere can point its own name here (DNS rebinding) and would then read our answers.

    An IP address is nobody's name, so any is accepted: behind a port mapping the address that people type is not one of
    ours. Starlette's TrustedHostMiddleware cannot express that, lets a second Host header pass and names no remedy."""

    def __init__(self, app: ASGIApp, names: Iterable[str] = (), policy: str = PAGE_POLICY) -> None:
        self.app = app
        self.headers = {**HEADERS, "Content-Security-Policy": policy}
        self.names = {name.lower() for name in names} | {"localhost"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(self.headers)
            await send(message)

        reason = self._refusal(Headers(scope=scope))
        app = JSONResponse({"reason": reason}, 403, {"Connection": "close"}) if reason else self.app
        await app(scope, receive, send_with_headers)

    def _refusal(self, headers: Headers) -> str:
        hosts = headers.getlist("host")
        name = _hostname(f"//{hosts[0]}") if len(hosts) == 1 else ""
        if name not in self.names and not _is_address(name):
            return "this server is not called that; open it by its address, or start 'longtake serve' with --allow-host NAME"
        if "origin" in headers and _hostname(headers["origin"]) != name:
            return "a page from elsewhere may not ask this server"
        return ""


def _is_address(name: str) -> bool:
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
