"""A real browser for tests: Debian's Chromium without a window, driven over the DevTools protocol. Every request that a page
makes is written down."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from websockets.sync.client import ClientConnection, connect

CHROMIUM = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)
_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-default-apps",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
)


class Page:
    """One tab. Events are kept as they come; `ask` waits for the answer to its own command."""

    def __init__(self, socket: ClientConnection):
        self._socket, self._number = socket, 0
        self.events: list[dict[str, Any]] = []

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._socket.recv(timeout=120))
            if message.get("id") == self._number:
                assert "error" not in message, f"{method}: {message['error']}"
                return message["result"]
            self.events.append(message)

    def open(self, page: Path | str, width: int = 1280, height: int = 900) -> None:
        """Open a file or an address and wait for its load event."""
        for domain in ("Page", "Network", "Runtime", "DOM", "Log"):
            self.ask(f"{domain}.enable")
        self.resize(width, height)
        self.ask("Page.navigate", url=page if isinstance(page, str) else page.absolute().as_uri())
        while not self._seen("Page.loadEventFired"):
            self.events.append(json.loads(self._socket.recv(timeout=120)))

    def resize(self, width: int, height: int) -> None:
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)

    def value(self, script: str) -> Any:
        """What an expression comes to, as JSON has it."""
        found = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait_for(self, script: str, seconds: float = 120) -> None:
        deadline = time.monotonic() + seconds
        while not self.value(script):
            assert time.monotonic() < deadline, f"{script} did not come true within {seconds} s"
            time.sleep(0.1)

    def choose_files(self, selector: str, *paths: Path) -> None:
        """Choose files as a person does in the dialogue of an <input type=file>."""
        root = self.ask("DOM.getDocument")["root"]["nodeId"]
        node = self.ask("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.ask("DOM.setFileInputFiles", files=[str(path) for path in paths], nodeId=node)

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.ask("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def point_at(self, selector: str) -> tuple[float, float]:
        """Move the mouse to the middle of an element, and say where that is."""
        place = f"document.querySelector({json.dumps(selector)})"
        x, y = self.value(
            f"(() => {{ const e = {place}; e.scrollIntoView({{block: 'center', behavior: 'instant'}});"
            " const b = e.getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        self.ask("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        return x, y

    def click(self, selector: str) -> None:
        """Click on the middle of an element, as a person does: a browser plays sound only then."""
        x, y = self.point_at(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    @property
    def requests(self) -> list[str]:
        """Every address that the page asked for, data: aside."""
        sent = [e["params"]["request"]["url"] for e in self.events if e["method"] == "Network.requestWillBeSent"]
        return [url for url in sent if not url.startswith("data:")]

    @property
    def complaints(self) -> list[str]:
        """Errors of scripts, and what the browser refused; not what a server answered."""
        entries = [e["params"]["entry"] for e in self.events if e["method"] == "Log.entryAdded"]
        logged = [entry["text"] for entry in entries if entry["source"] != "network"]
        thrown = [str(e["params"]["exceptionDetails"]) for e in self.events if e["method"] == "Runtime.exceptionThrown"]
        return logged + thrown

    def _seen(self, method: str) -> bool:
        return any(event["method"] == method for event in self.events)


@contextmanager
def browser_page(folder: Path) -> Iterator[Page]:
    """A tab of a browser that keeps what it must in `folder`."""
    assert CHROMIUM is not None
    profile = folder / "browser"
    process = subprocess.Popen(
        [CHROMIUM, *_FLAGS, f"--user-data-dir={profile}", "about:blank"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        port = next(found[1] for line in process.stderr if (found := re.search(r"ws://127\.0\.0\.1:(\d+)/", line)))
        with connect(_tab(int(port)), max_size=None) as socket:
            yield Page(socket)
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _tab(port: int) -> str:
    for _ in range(100):
        with urlopen(f"http://127.0.0.1:{port}/json/list", timeout=30) as answer:
            tabs = [tab for tab in json.load(answer) if tab["type"] == "page"]
        if tabs:
            return tabs[0]["webSocketDebuggerUrl"]
        time.sleep(0.1)
    raise AssertionError("the browser opened no tab")
