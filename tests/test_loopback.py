"""The loopback server serves files to whoever has the address, and to no other request."""

import contextlib
import http.client
import re
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from unified_prof.base import loopback
from unified_prof.base.loopback import Item, Served
from unified_prof.errors import UsageError

READER = "https://reader.example"
PAGE = b"<!doctype html><title>page</title>"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "run.trace"
    path.write_bytes(bytes(range(256)) * 4000)
    return path


@pytest.fixture
def served(trace: Path) -> Iterator[Served]:
    items = [
        Item("", "text/html", PAGE),
        Item("run.trace", "application/octet-stream", trace, reader=READER, is_last=True),
    ]
    with Served(items) as served:
        yield served


def request(
    served: Served, path: str, method: str = "GET", **headers: str
) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=60)
    try:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, headers=named)
        answer = connection.getresponse()
        return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
    finally:
        connection.close()


def path_of(served: Served, name: str = "") -> str:
    return served.url_of(name).partition(str(served.port))[2]


def test_files_are_served_at_their_addresses(served: Served, trace: Path) -> None:
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{32}/", served.url)
    status, headers, body = request(served, path_of(served))
    assert (status, body) == (200, PAGE)
    assert headers["content-type"] == "text/html"
    assert headers["cache-control"] == "no-store"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["x-frame-options"] == "DENY"
    assert headers["server"].strip() == "uprof"
    assert "access-control-allow-origin" not in headers
    status, headers, body = request(served, path_of(served, "run.trace"))
    assert (status, body) == (200, trace.read_bytes())
    status, headers, body = request(served, path_of(served, "run.trace"), "HEAD")
    assert (status, body) == (200, b"")
    assert headers["content-length"] == str(trace.stat().st_size)


def test_each_server_has_its_own_token() -> None:
    with Served([Item("", "text/html", PAGE)]) as one, Served([]) as other:
        assert one.url.split("/")[3] != other.url.split("/")[3]
        assert request(other, path_of(one))[0] == 404


def test_other_paths_are_not_found(served: Served) -> None:
    token = path_of(served).strip("/")
    names = ("", "x/", "/other", f"/../{token}/", "/run.trace/", "/%72un.trace")
    paths = ["/", "/favicon.ico", f"/{token[:-1]}/", f"/{token.upper()}/", "/%2e%2e/"]
    for path in (*paths, *(f"/{token}{name}" for name in names)):
        status, _, body = request(served, path)
        assert status == 404, path
        assert body == b"404 Not Found\n"


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "127.0.0.2", "[::1]:80"]
)
def test_foreign_host_header_is_forbidden(served: Served, host: str) -> None:
    for name in ("", "run.trace"):
        assert request(served, path_of(served, name), Host=host)[0] == 403


@pytest.mark.parametrize("host", ["localhost", "localhost:8000", "127.0.0.1:80"])
def test_host_header_of_a_forwarded_port_is_accepted(served: Served, host: str) -> None:
    assert request(served, path_of(served), Host=host)[0] == 200


def test_request_without_host_header_is_forbidden(served: Served) -> None:
    with socket.create_connection(("127.0.0.1", served.port), timeout=60) as connection:
        connection.sendall(f"GET {path_of(served)} HTTP/1.0\r\n\r\n".encode())
        assert connection.recv(100).startswith(b"HTTP/1.0 403 ")


def test_reader_origin_may_read_the_trace_only(served: Served) -> None:
    trace, page = path_of(served, "run.trace"), path_of(served)
    allowed = "access-control-allow-origin"
    assert request(served, trace, Origin=READER)[1][allowed] == READER
    assert allowed not in request(served, trace, Origin="https://evil.example")[1]
    assert allowed not in request(served, trace, Origin="null")[1]
    assert allowed not in request(served, page, Origin=READER)[1]
    status, headers, _ = request(
        served, trace, "OPTIONS", Origin=READER, Access_Control_Request_Private_Network="true"
    )
    assert (status, headers[allowed]) == (204, READER)
    assert headers["access-control-allow-private-network"] == "true"
    assert request(served, trace, "OPTIONS", Origin="https://evil.example")[0] == 403
    assert request(served, page, "OPTIONS", Origin=READER)[0] == 403
    assert request(served, "/", "OPTIONS", Origin=READER)[0] == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "TRACE", "NONSENSE"])
def test_methods_that_write_are_not_allowed(served: Served, method: str) -> None:
    assert request(served, path_of(served), method)[0] == 405


def test_invalid_request_is_not_echoed(served: Served) -> None:
    with socket.create_connection(("127.0.0.1", served.port), timeout=60) as connection:
        connection.sendall(b"<script>\r\n\r\n")
        answer = connection.recv(1000)
    assert b"script" not in answer


def test_server_listens_on_loopback_only(served: Served) -> None:
    assert served._server.socket.getsockname()[0] == "127.0.0.1"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", served.port), timeout=2)


def test_occupied_port_is_an_error_or_the_next_port_is_used() -> None:
    with Served([]) as one:
        with pytest.raises(UsageError, match=f"port {one.port} of 127.0.0.1 is not") as caught:
            Served([], (one.port,))
        assert caught.value.slug == "port-not-free"
        with Served([], (one.port, 0)) as other:
            assert other.port != one.port


def test_server_ends_after_a_time_without_requests(served: Served) -> None:
    began = time.monotonic()
    served.wait(0.2)
    assert time.monotonic() - began < 30
    began = time.monotonic()
    asking = threading.Timer(0.3, request, (served, path_of(served)))
    asking.start()
    served.wait(0.6)
    asking.join()
    assert time.monotonic() - began >= 0.9, "a request extends the time"


def test_server_ends_soon_after_the_last_file_was_fetched(served: Served) -> None:
    request(served, path_of(served, "run.trace"), "HEAD")
    request(served, path_of(served))
    waiting = threading.Thread(target=served.wait, args=(60,), kwargs={"after_last_s": 0.1})
    waiting.start()
    waiting.join(0.4)
    assert waiting.is_alive(), "neither HEAD nor the page is the trace"
    request(served, path_of(served, "run.trace"))
    waiting.join(30)
    assert not waiting.is_alive()


def test_running_transfer_is_completed(tmp_path: Path) -> None:
    large = tmp_path / "large"
    large.write_bytes(b"x" * 30_000_000)
    with Served([Item("large", "text/plain", large, is_last=True)]) as served:
        connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=20)
        connection.request("GET", path_of(served, "large"))
        answer = connection.getresponse()
        waiting = threading.Thread(target=served.wait, args=(0,))
        waiting.start()
        waiting.join(0.3)
        assert waiting.is_alive()
        assert len(answer.read()) == 30_000_000
        waiting.join(30)
        assert not waiting.is_alive()
        connection.close()


def test_idle_connection_does_not_keep_the_server_running(served: Served) -> None:
    with socket.create_connection(("127.0.0.1", served.port)):
        began = time.monotonic()
        served.wait(0.1)
        served.__exit__(None, None, None)
        assert time.monotonic() - began < 30


@pytest.mark.slow
def test_requests_with_a_wrong_token_do_not_keep_the_server_running(served: Served) -> None:
    stop = threading.Event()

    def keep_guessing() -> None:
        while not stop.is_set():
            request(served, "/wrong/")

    guessing = threading.Thread(target=keep_guessing)
    waiting = threading.Thread(target=served.wait, args=(0.5,))
    guessing.start()
    waiting.start()
    waiting.join(30)
    ended = not waiting.is_alive()
    stop.set()
    guessing.join()
    assert ended


def test_clients_that_never_finish_their_request_block_no_other_client(served: Served) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(50):
            connection = socket.create_connection(("127.0.0.1", served.port))
            stack.enter_context(connection)
            connection.sendall(f"GET {path_of(served)} HTTP/1.1\r\nHost: loc".encode())
        assert request(served, path_of(served))[0] == 200
        began = time.monotonic()
        served.wait(0.1)
        assert time.monotonic() - began < 30


def test_stalled_client_is_disconnected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loopback._Handler, "timeout", 0.3)
    large = tmp_path / "large"
    large.write_bytes(b"x" * 30_000_000)
    with Served([Item("large", "text/plain", large)]) as served:
        with socket.create_connection(("127.0.0.1", served.port)) as connection:
            text = f"GET {path_of(served, 'large')} HTTP/1.1\r\nHost: localhost\r\n\r\n"
            connection.sendall(text.encode())
            assert connection.recv(10) == b"HTTP/1.0 2"
            began = time.monotonic()
            served.wait(0.1)
            assert time.monotonic() - began < 30
        assert request(served, path_of(served, "large"), "HEAD")[0] == 200
