"""A headless Chromium for tests, driven over the DevTools protocol; nothing here knows what is on the page."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

FLAGS = (
    "--headless",
    "--no-sandbox",  # tests may run as root, where Chromium's sandbox does not start
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
)
PATIENCE = 600.0  # seconds after which the browser hangs, even on a busy machine; nothing else depends on it
KEY_CODES = {
    "ArrowLeft": 37,
    "ArrowRight": 39,
    "Home": 36,
    "End": 35,
    "PageUp": 33,
    "PageDown": 34,
    "Escape": 27,
    "Tab": 9,
    "Enter": 13,
}


def find_chromium() -> str | None:
    """The browser's program, or None on a machine without one."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((path for path in map(shutil.which, names) if path), None)


@contextmanager
def launch_chromium(program: str, profile: Path) -> Iterator[str]:
    """Run the browser with a new profile; gives the address of its DevTools."""
    command = [program, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield _devtools_address(profile / "DevToolsActivePort")
        finally:
            process.terminate()
            process.wait(PATIENCE)


class Page:
    """One tab: what a person does with it, and what it said on the console and asked of the network."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection
        self.complaints: list[str] = []  # errors and warnings on the console, exceptions
        self.requests: list[str] = []  # addresses
        self._last_id = 0
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and wait for its answer; events that arrive meanwhile are noted."""
        self._last_id += 1
        session = {} if self._session is None else {"sessionId": self._session}
        message = {"id": self._last_id, "method": method, "params": parameters, **session}
        self.connection.send(json.dumps(message))
        while True:
            answer = json.loads(self.connection.recv(PATIENCE))
            if answer.get("id") == self._last_id:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer)

    def open(self, path: Path, *, width: int = 1400, height: int = 900, dark: bool = False) -> None:
        """Show a file in a window of this size; below 600 pixels it is a phone's, with touch and small pixels."""
        phone = width < 600
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2 if phone else 1,
            mobile=phone,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=path.resolve().as_uri())
        self.wait_for("document.readyState === 'complete' && location.protocol === 'file:'")

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait_for(self, condition: str) -> None:
        _wait(lambda: bool(self.evaluate(condition)), condition)

    def box(self, selector: str) -> dict[str, float]:
        """Where an element is in the window, after scrolling it there."""
        found = f"document.querySelector({json.dumps(selector)})"
        self.evaluate(f"{found}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
        box: dict[str, float] = self.evaluate(f"{found}.getBoundingClientRect().toJSON()")
        return box

    def hover(self, selector: str, across: float = 0.5, down: float = 0.5) -> None:
        """Move the pointer over an element, to a fraction of its width and height."""
        box = self.box(selector)
        x, y = box["x"] + across * box["width"], box["y"] + down * box["height"]
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, selector: str) -> None:
        box = self.box(selector)
        where = {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2}
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **where)

    def tap(self, selector: str, across: float = 0.5, down: float = 0.5) -> None:
        """Touch an element with a finger and lift it again."""
        box = self.box(selector)
        finger = {"x": box["x"] + across * box["width"], "y": box["y"] + down * box["height"]}
        self.call("Input.dispatchTouchEvent", type="touchStart", touchPoints=[finger])
        self.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])

    def press(self, key: str) -> None:
        code = KEY_CODES[key]
        text = {"text": "\r"} if key == "Enter" else {}
        names = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        self.call("Input.dispatchKeyEvent", type="keyDown", **names, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **names)

    def screenshot(self, *, whole_page: bool = False) -> bytes:
        """A PNG of the window or of the whole page."""
        picture = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole_page)["data"]
        return base64.b64decode(picture)

    def _note(self, event: dict[str, Any]) -> None:
        parameters = event.get("params", {})
        match event.get("method"):
            case "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(parameters["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if parameters["type"] in ("error", "warning", "assert"):
                self.complaints.append(json.dumps(parameters["args"]))
            case "Log.entryAdded" if parameters["entry"]["level"] in ("error", "warning"):
                self.complaints.append(parameters["entry"]["text"])
            case "Network.requestWillBeSent":
                self.requests.append(parameters["request"]["url"])


@contextmanager
def open_page(devtools: str) -> Iterator[Page]:
    """A new tab of a running browser."""
    with connect(devtools, proxy=None, max_size=None, open_timeout=PATIENCE) as connection:
        yield Page(connection)


def _devtools_address(port_file: Path) -> str:
    """The browser writes its port and path into its profile once it listens."""
    _wait(lambda: port_file.exists() and port_file.read_text().count("\n") >= 1, "the browser to listen")
    port, path = port_file.read_text().split("\n")[:2]
    return f"ws://127.0.0.1:{port}{path}"


def _wait(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"waited {PATIENCE:.0f} s for {what}"
        time.sleep(0.02)
