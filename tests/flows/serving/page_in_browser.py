"""A real Chromium without a window, steered over its DevTools protocol."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from websockets.sync.client import ClientConnection, connect

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_START_SECONDS = 60


class Browser:
    """One page of a browser; what its scripts log and what it fails to load is kept in `complaints`."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._number = 0
        self.complaints: list[str] = []
        self.requests: list[str] = []
        for domain in ("Page", "Runtime", "DOM", "Network", "Log"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command and its answer; events that come before it are noted."""
        self._number += 1
        self._connection.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        while True:
            said = json.loads(self._connection.recv(timeout=120))
            if said.get("id") == self._number:
                if "error" in said:
                    raise RuntimeError(f"{method}: {said['error']['message']}")
                return said["result"]
            self._note(said)

    def _note(self, event: dict[str, Any]) -> None:
        match event.get("method"):
            case "Runtime.exceptionThrown":
                self.complaints.append(event["params"]["exceptionDetails"]["text"])
            case "Log.entryAdded":
                entry = event["params"]["entry"]
                if entry["level"] == "error" and entry["source"] != "network":
                    self.complaints.append(entry["text"])
            case "Network.requestWillBeSent":
                self.requests.append(event["params"]["request"]["url"])

    def open(self, url: str) -> None:
        self.send("Page.navigate", url=url)
        self.wait_for("document.readyState === 'complete'")

    def ask(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"]["exception"].get("description", script))
        return answer["result"].get("value")

    def wait_for(self, script: str, seconds: float = 120) -> None:
        deadline = time.monotonic() + seconds
        while not self.ask(script):
            assert time.monotonic() < deadline, f"{script} did not come true within {seconds} s"
            time.sleep(0.1)

    def give_files(self, selector: str, *paths: Path) -> None:
        """Choose files as a person does in the dialogue of an <input type=file>."""
        root = self.send("DOM.getDocument")["root"]["nodeId"]
        node = self.send("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.send("DOM.setFileInputFiles", files=[str(path) for path in paths], nodeId=node)

    def point_at(self, selector: str) -> None:
        """Move the pointer onto the middle of an element."""
        place = self.ask(f"JSON.stringify(document.querySelector({selector!r}).getBoundingClientRect())")
        box = json.loads(place)
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def look_like(self, width: int, height: int, dark: bool = False, scale: float = 1) -> None:
        """The size of a screen and the colours of a system."""
        how = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": width < 600}
        self.send("Emulation.setDeviceMetricsOverride", **how)
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[feature])

    def photograph(self, path: Path) -> Path:
        """The whole page as a PNG."""
        answer = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(answer["data"]))
        return path


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """`folder` is for the browser's own files."""
    assert PROGRAM is not None, "no chromium on this machine"
    command = [PROGRAM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
    command += ["--disable-extensions", "--remote-debugging-port=0", f"--user-data-dir={folder}", "about:blank"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        port = _port(folder / "DevToolsActivePort", process)
        with urlopen(f"http://127.0.0.1:{port}/json/list") as answer:
            page = next(target for target in json.load(answer) if target["type"] == "page")
        with connect(page["webSocketDebuggerUrl"], max_size=None) as connection:
            yield Browser(connection)
    finally:
        process.kill()
        process.wait()


def _port(note: Path, process: subprocess.Popen[bytes]) -> int:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        if note.is_file() and (lines := note.read_text().split()):
            return int(lines[0])
        time.sleep(0.1)
    raise AssertionError(f"chromium does not start (exit code {process.poll()})")
