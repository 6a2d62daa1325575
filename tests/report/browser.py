"""Headless Chromium, driven through chromedriver's W3C protocol without other packages."""

from __future__ import annotations

import base64
import json
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

_PATIENCE_S = 120

ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
)


def missing() -> str | None:
    """Return why no browser is available, or None."""
    for program in ("chromium", "chromedriver"):
        if shutil.which(program) is None:
            return f"needs {program} (Debian: apt-get install chromium chromium-driver)"
    return None


needed = pytest.mark.skipif(missing() is not None, reason=missing() or "")


class Browser:
    """One browser with one window and its own profile."""

    def __init__(self) -> None:
        self._resources = ExitStack()
        profile = self._resources.enter_context(tempfile.TemporaryDirectory(prefix="uprof-page-"))
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self._base = f"http://127.0.0.1:{port}"
        process = subprocess.Popen(
            ["chromedriver", f"--port={port}", "--silent"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._resources.callback(process.wait, _PATIENCE_S)
        self._resources.callback(process.terminate)
        self._wait_for_driver()
        options = {"args": [*ARGUMENTS, f"--user-data-dir={profile}"]}
        capabilities = {
            "alwaysMatch": {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        }
        session = self._call("POST", "/session", {"capabilities": capabilities})
        self._session = f"/session/{session['sessionId']}"
        self._resources.callback(self._call, "DELETE", self._session)

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._resources.close()

    def open(self, page: Path, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Open a page from disk in a window of that size."""
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self._devtools("Emulation.setEmulatedMedia", features=scheme)
        self._devtools(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        self.go(page.absolute().as_uri())

    def go(self, address: str) -> None:
        """Open a page at an address and wait until it is drawn."""
        self._call("POST", f"{self._session}/url", {"url": address})
        end = time.monotonic() + _PATIENCE_S
        while self.run("return document.documentElement.dataset.ready") != "yes":
            if time.monotonic() > end:
                raise TimeoutError(f"the page did not get ready: {self.console()}")
            time.sleep(0.05)
        # Parts whose size is measured first are drawn in the next frame.
        self.run_async("requestAnimationFrame(() => requestAnimationFrame(done));")

    def run(self, script: str, *arguments: Any) -> Any:
        """Run a script and return its result."""
        body = {"script": script, "args": list(arguments)}
        return self._call("POST", f"{self._session}/execute/sync", body)

    def run_async(self, script: str) -> Any:
        """Run a script and return the value that it passes to `done`."""
        body = {"script": "const done = arguments[0];" + script, "args": []}
        return self._call("POST", f"{self._session}/execute/async", body)

    def press(self, *keys: str) -> None:
        """Press keys one after another on the focused element."""
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        source = {"type": "key", "id": "keyboard", "actions": actions}
        self._call("POST", f"{self._session}/actions", {"actions": [source]})

    def console(self) -> list[str]:
        """Return the console messages since the last call."""
        entries = self._call("POST", f"{self._session}/se/log", {"type": "browser"})
        return [f"{entry['level']}: {entry['message']}" for entry in entries]

    def screenshot(self, path: Path, *, whole: bool = True) -> Path:
        """Write a screenshot of the page or of its visible part."""
        found = self._devtools("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(found["data"]))
        return path

    def _devtools(self, command: str, **parameters: Any) -> Any:
        body = {"cmd": command, "params": parameters}
        return self._call("POST", f"{self._session}/goog/cdp/execute", body)

    def _wait_for_driver(self) -> None:
        end = time.monotonic() + _PATIENCE_S
        while True:
            try:
                if self._call("GET", "/status")["ready"]:
                    return
            except OSError:
                if time.monotonic() > end:
                    raise
            time.sleep(0.05)

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self._base + path, data, {"Content-Type": "application/json"}, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=_PATIENCE_S) as response:
                return json.load(response)["value"]
        except urllib.error.HTTPError as err:
            raise RuntimeError(json.load(err)["value"]["message"]) from None
