"""Local HTTP server that serves a few files to a browser, on loopback and below a random path.

Only clients that know the full address can read the files: other machines cannot reach the server,
other users and web pages do not know the path, and pages whose host name resolves to this machine
(DNS rebinding) are rejected by their Host header. Nothing can be written.
"""

from __future__ import annotations

import hmac
import os
import secrets
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

from unified_prof.errors import UsageError

ADDRESS = "127.0.0.1"
# Host names of this machine; the port is ignored because it may be forwarded.
_NAMES = frozenset({ADDRESS, "localhost"})
_PATIENCE_S = 30
_GRACE_S = 5


@dataclass(frozen=True, slots=True)
class Item:
    """Served file."""

    # Name that follows the random path in the URL; may be empty.
    name: str
    media_type: str
    content: bytes | Path
    reader: str | None = None  # Other origin that may read the file, such as https://example.org.
    is_last: bool = False  # True if no further request is expected after it.


class Served:
    """Server that runs within a `with` block."""

    def __init__(
        self, items: Iterable[Item] | Callable[[str], Item | None], ports: Sequence[int] = (0,)
    ) -> None:
        """Bind a port.

        Args:
            items: Files to serve, or a function that returns the file of a name; threads call it.
            ports: Ports to try in order; 0 for any free one.

        Raises:
            UsageError: No port is available.
        """
        self._word = secrets.token_urlsafe(24)
        self._items = {} if callable(items) else {item.name: item for item in items}
        self._item = items if callable(items) else self._items.get
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._asked_at = time.monotonic()
        self._under_way = 0
        self._is_over = False
        self._server = _server_on(ports)
        self._server.served = self
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True
        )

    def __enter__(self) -> Served:
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        end = time.monotonic() + _GRACE_S
        with self._changed:
            while error is None and self._under_way and (left := end - time.monotonic()) > 0:
                self._changed.wait(left)

    @property
    def port(self) -> int:
        """Bound port."""
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        """URL of the file with an empty name."""
        return self.url_of("")

    def url_of(self, name: str) -> str:
        """Return the URL of a file."""
        return f"http://{ADDRESS}:{self.port}/{self._word}/{name}"

    def wait(self, idle_s: float, *, after_last_s: float | None = None) -> None:
        """Wait until there has been no valid request for `idle_s` seconds.

        After the last file was fetched, `after_last_s` applies if it is given.
        """
        with self._changed:
            while True:
                patience = idle_s
                if self._is_over and after_last_s is not None:
                    patience = after_last_s
                left = self._asked_at + patience - time.monotonic()
                if left <= 0 and not self._under_way:
                    return
                # Short waits, because not every system interrupts a wait on Ctrl-C.
                self._changed.wait(min(max(left, 0.05), 1.0))

    def _find(self, path: str) -> Item | None:
        """Return the file at a path; the random part is compared in constant time."""
        word, slash, name = path.partition("?")[0].removeprefix("/").partition("/")
        known = hmac.compare_digest(word.encode(), self._word.encode())
        return self._item(name) if known and slash else None

    def _begin(self) -> None:
        with self._changed:
            self._under_way += 1
            self._asked_at = time.monotonic()

    def _end(self, whole: Item | None) -> None:
        """Record the end of a response; `whole` is the file, if it was sent completely."""
        with self._changed:
            self._under_way -= 1
            self._asked_at = time.monotonic()
            self._is_over |= whole is not None and whole.is_last
            self._changed.notify_all()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # browsers keep idle connections open
    request_queue_size = 64  # A system delays a connection beyond it by a second or more.
    served: Served

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore errors of clients that disconnect early."""


def _server_on(ports: Sequence[int]) -> _Server:
    for port in ports[:-1]:
        with suppress(OSError):
            return _Server((ADDRESS, port), _Handler)
    try:
        return _Server((ADDRESS, ports[-1]), _Handler)
    except OSError as err:
        raise UsageError(
            f"port {ports[-1]} of {ADDRESS} is not available: {err.strerror or err}",
            hint="use another --port, or omit it to use any free port",
            slug="port-not-free",
        ) from err


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version = "uprof"
    sys_version = ""
    timeout = _PATIENCE_S

    def do_GET(self) -> None:
        """Send a file."""
        self._answer(with_content=True)

    def do_HEAD(self) -> None:
        """Send the headers of a file."""
        self._answer(with_content=False)

    def do_OPTIONS(self) -> None:
        """Answer a preflight request: other origins may read only files that allow them."""
        item = self._requested_item()
        if item is None:
            return
        if item.reader is None or self.headers.get("Origin") != item.reader:
            self._refuse(HTTPStatus.FORBIDDEN)
            return
        self.send_response(HTTPStatus.NO_CONTENT)
        self._allow(item)
        self.send_header("Access-Control-Allow-Methods", "GET, HEAD")
        if self.headers.get("Access-Control-Request-Private-Network") == "true":
            self.send_header("Access-Control-Allow-Private-Network", "true")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing, so that only the command writes to the terminal."""

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer invalid requests without details."""
        not_known = code == HTTPStatus.NOT_IMPLEMENTED
        self._refuse(HTTPStatus.METHOD_NOT_ALLOWED if not_known else HTTPStatus(code))

    def _answer(self, *, with_content: bool) -> None:
        item = self._requested_item()
        if item is None:
            return
        served = self.server.served
        served._begin()  # only valid requests keep the server running
        whole = None
        try:
            with _opened(item.content) as (file, size):
                self.send_response(HTTPStatus.OK)
                self.send_header("Content-Type", item.media_type)
                self.send_header("Content-Length", str(size))
                self._allow(item)
                self.end_headers()
                if with_content:
                    shutil.copyfileobj(file, self.wfile)
                    self.wfile.flush()
                    whole = item
        finally:
            served._end(whole)

    def _requested_item(self) -> Item | None:
        """Return the requested file; send an error and return None if there is none."""
        host = self.headers.get("Host", "")
        if host.rpartition(":")[0] not in _NAMES and host not in _NAMES:
            self._refuse(HTTPStatus.FORBIDDEN)
            return None
        item = self.server.served._find(self.path)
        if item is None:
            self._refuse(HTTPStatus.NOT_FOUND)
        return item

    def _allow(self, item: Item) -> None:
        """Add the CORS headers for the file's allowed origin, if it has one."""
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        if item.reader is None:
            return
        self.send_header("Vary", "Origin")
        if self.headers.get("Origin") == item.reader:
            self.send_header("Access-Control-Allow-Origin", item.reader)

    def _refuse(self, status: HTTPStatus) -> None:
        body = f"{status.value} {status.phrase}\n".encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if getattr(self, "command", None) != "HEAD":
            with suppress(OSError):
                self.wfile.write(body)

    def end_headers(self) -> None:
        """Add the common headers of every response."""
        self.send_header("Cache-Control", "no-store")
        self.send_header("Referrer-Policy", "no-referrer")  # the address is the key
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("X-Frame-Options", "DENY")
        super().end_headers()


@contextmanager
def _opened(content: bytes | Path) -> Iterator[tuple[BinaryIO, int]]:
    """Yield a stream of the content, and its size."""
    if isinstance(content, bytes):
        yield BytesIO(content), len(content)
        return
    with content.open("rb") as file:
        yield file, content.stat().st_size


def open_browser(url: str, folder: Path) -> bool:
    """Open the address if there is a graphical screen; terminal browsers are not used.

    The browser gets a local file that forwards to the address: other users can read the arguments
    of processes, and the address is the key.
    """
    import webbrowser

    if not (chosen := os.environ.get("BROWSER")):
        if sys.platform in ("darwin", "win32"):
            if "SSH_CONNECTION" in os.environ:
                return False
        elif not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
            return False
    try:
        browser = webbrowser.get()
        if not chosen and type(browser) is webbrowser.GenericBrowser:
            return False
        redirect = folder / f"open-{secrets.token_hex(8)}.html"
        with os.fdopen(os.open(redirect, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
            file.write(f'<!DOCTYPE html><meta http-equiv="refresh" content="0; url={url}">\n')
        return browser.open(redirect.as_uri())
    except (OSError, webbrowser.Error):
        return False
