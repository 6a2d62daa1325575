"""What is served on loopback is had by whoever has the address, and by nobody else."""

from __future__ import annotations

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


def ask(
    served: Served, path: str, method: str = "GET", **headers: str
) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=10)
    try:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, headers=named)
        answer = connection.getresponse()
        return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
    finally:
        connection.close()


def path_of(served: Served, name: str = "") -> str:
    return served.url_of(name).partition(str(served.port))[2]


def test_both_files_are_had_by_their_addresses(served: Served, trace: Path) -> None:
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{32}/", served.url)
    status, headers, body = ask(served, path_of(served))
    assert (status, body) == (200, PAGE)
    assert headers["content-type"] == "text/html"
    assert headers["cache-control"] == "no-store"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["x-frame-options"] == "DENY"
    assert headers["server"].strip() == "uprof"
    assert "access-control-allow-origin" not in headers
    status, headers, body = ask(served, path_of(served, "run.trace"))
    assert (status, body) == (200, trace.read_bytes())
    status, headers, body = ask(served, path_of(served, "run.trace"), "HEAD")
    assert (status, body) == (200, b"")
    assert headers["content-length"] == str(trace.stat().st_size)


def test_every_time_the_word_is_another() -> None:
    with Served([Item("", "text/html", PAGE)]) as one, Served([]) as other:
        assert one.url.split("/")[3] != other.url.split("/")[3]
        assert ask(other, path_of(one))[0] == 404


def test_anything_else_is_not_there(served: Served) -> None:
    word = path_of(served).strip("/")
    for path in (
        "/", "", "/favicon.ico", f"/{word}", f"/{word}x/", f"/{word[:-1]}/", f"/{word.upper()}/",
        f"/{word}/other", f"/{word}/../{word}/", f"/{word}/run.trace/", "/%2e%2e/",
        f"/{word}/%72un.trace",
    ):  # fmt: skip
        status, _, body = ask(served, path or "/")
        assert status == 404, path
        assert body == b"404 Not Found\n"


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "127.0.0.2", "[::1]:80"]
)
def test_a_name_that_was_made_to_point_here_gets_nothing(served: Served, host: str) -> None:
    for name in ("", "run.trace"):
        assert ask(served, path_of(served, name), Host=host)[0] == 403


@pytest.mark.parametrize("host", ["localhost", "localhost:8000", "127.0.0.1:80"])
def test_another_port_that_is_forwarded_here_does(served: Served, host: str) -> None:
    assert ask(served, path_of(served), Host=host)[0] == 200


def test_without_a_host_there_is_no_answer(served: Served) -> None:
    with socket.create_connection(("127.0.0.1", served.port), timeout=10) as connection:
        connection.sendall(f"GET {path_of(served)} HTTP/1.0\r\n\r\n".encode())
        assert connection.recv(100).startswith(b"HTTP/1.0 403 ")


def test_one_other_page_may_read_the_trace_and_only_that(served: Served) -> None:
    trace, page = path_of(served, "run.trace"), path_of(served)
    allowed = "access-control-allow-origin"
    assert ask(served, trace, Origin=READER)[1][allowed] == READER
    assert allowed not in ask(served, trace, Origin="https://evil.example")[1]
    assert allowed not in ask(served, trace, Origin="null")[1]
    assert allowed not in ask(served, page, Origin=READER)[1]
    status, headers, _ = ask(
        served, trace, "OPTIONS", Origin=READER, Access_Control_Request_Private_Network="true"
    )
    assert (status, headers[allowed]) == (204, READER)
    assert headers["access-control-allow-private-network"] == "true"
    assert ask(served, trace, "OPTIONS", Origin="https://evil.example")[0] == 403
    assert ask(served, page, "OPTIONS", Origin=READER)[0] == 403
    assert ask(served, "/", "OPTIONS", Origin=READER)[0] == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "TRACE", "NONSENSE"])
def test_nothing_can_be_written(served: Served, method: str) -> None:
    assert ask(served, path_of(served), method)[0] == 405


def test_what_is_no_request_is_refused_without_a_word_of_it(served: Served) -> None:
    with socket.create_connection(("127.0.0.1", served.port), timeout=10) as connection:
        connection.sendall(b"<script>\r\n\r\n")
        answer = connection.recv(1000)
    assert b"script" not in answer


def test_only_this_machine_reaches_it(served: Served) -> None:
    assert served._server.socket.getsockname()[0] == "127.0.0.1"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", served.port), timeout=2)


def test_a_port_that_is_taken_is_said_or_another_one_is_taken() -> None:
    with Served([]) as one:
        with pytest.raises(UsageError, match=f"port {one.port} of 127.0.0.1 is not") as said:
            Served([], (one.port,))
        assert said.value.slug == "port-not-free"
        with Served([], (one.port, 0)) as other:
            assert other.port != one.port


def test_it_ends_when_nobody_has_asked_for_a_while(served: Served) -> None:
    began = time.monotonic()
    served.wait(0.2)
    assert time.monotonic() - began < 5
    began = time.monotonic()
    asking = threading.Timer(0.3, ask, (served, path_of(served)))
    asking.start()
    served.wait(0.6)
    asking.join()
    assert time.monotonic() - began >= 0.9, "who asks for something has more time"


def test_it_ends_sooner_once_the_last_has_been_fetched(served: Served) -> None:
    ask(served, path_of(served, "run.trace"), "HEAD")
    ask(served, path_of(served))
    waiting = threading.Thread(target=served.wait, args=(60,), kwargs={"after_last_s": 0.1})
    waiting.start()
    waiting.join(0.4)
    assert waiting.is_alive(), "neither its size nor the page is the trace"
    ask(served, path_of(served, "run.trace"))
    waiting.join(10)
    assert not waiting.is_alive()


def test_a_file_that_is_under_way_is_sent_to_its_end(tmp_path: Path) -> None:
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
        waiting.join(10)
        assert not waiting.is_alive()
        connection.close()


def test_a_browser_that_asks_for_nothing_does_not_hold_it(served: Served) -> None:
    with socket.create_connection(("127.0.0.1", served.port)):
        began = time.monotonic()
        served.wait(0.1)
        served.__exit__(None, None, None)
        assert time.monotonic() - began < 5


def test_requests_with_a_wrong_token_do_not_keep_the_server_running(served: Served) -> None:
    stop = threading.Event()

    def keep_guessing() -> None:
        while not stop.is_set():
            ask(served, "/wrong/")

    guessing = threading.Thread(target=keep_guessing)
    waiting = threading.Thread(target=served.wait, args=(0.5,))
    guessing.start()
    waiting.start()
    waiting.join(10)
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
        assert ask(served, path_of(served))[0] == 200
        began = time.monotonic()
        served.wait(0.1)
        assert time.monotonic() - began < 5


def test_client_that_stops_reading_is_disconnected_after_the_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loopback._Handler, "timeout", 0.3)
    large = tmp_path / "large"
    large.write_bytes(b"x" * 30_000_000)
    with Served([Item("large", "text/plain", large)]) as served:
        with socket.create_connection(("127.0.0.1", served.port)) as connection:
            request = f"GET {path_of(served, 'large')} HTTP/1.1\r\nHost: localhost\r\n\r\n"
            connection.sendall(request.encode())
            assert connection.recv(10) == b"HTTP/1.0 2"
            began = time.monotonic()
            served.wait(0.1)
            assert time.monotonic() - began < 5
        assert ask(served, path_of(served, "large"), "HEAD")[0] == 200
