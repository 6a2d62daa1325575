"""A small server that answers like GitHub and GitLab for listing and writing comments."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

TOKEN = "made-up-token"
GITHUB = "/repos/unified-prof/uprof/issues"
GITLAB = "/api/v4/projects/42/merge_requests/7/notes"
_PATHS = {"POST": (f"{GITHUB}/7/comments", GITLAB), "PATCH": (GITHUB,), "PUT": (GITLAB,)}
# Account of TOKEN: its login on GitHub, its id on GitLab.
ACCOUNT = {"user": {"login": "github-actions[bot]"}, "author": {"id": 5}}


class Forge:
    """Comments of a server, and the requests it received."""

    def __init__(self) -> None:
        self.comments: list[dict[str, Any]] = []
        self.requests: list[str] = []
        # Status codes of the next answers.
        self.failures: list[int] = []
        self.address = ""

    def bodies(self) -> list[str]:
        return [comment["body"] for comment in self.comments]


@contextmanager
def serving() -> Iterator[Forge]:
    """Run the server on this machine within the block."""
    forge = Forge()

    class Handler(BaseHTTPRequestHandler):
        def _answer(self, code: int, data: object) -> None:
            body = json.dumps(data).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def _handle(self) -> None:
            forge.requests.append(f"{self.command} {self.path}")
            length = int(self.headers.get("Content-Length") or 0)
            data = json.loads(self.rfile.read(length)) if length else {}
            address = urlsplit(self.path)
            tokens = (self.headers.get("Authorization"), self.headers.get("PRIVATE-TOKEN"))
            if forge.failures:
                self._answer(forge.failures.pop(0), {})
            elif tokens not in ((f"Bearer {TOKEN}", None), (None, TOKEN)):
                self._answer(401, {})
            elif self.command == "GET" and address.path == "/api/v4/user":
                self._answer(200, ACCOUNT["author"])
            elif self.command == "GET" and address.path in _PATHS["POST"]:
                query = {name: int(one[0]) for name, one in parse_qs(address.query).items()
                         if name != "sort"}  # fmt: skip
                first = (query["page"] - 1) * query["per_page"]
                self._answer(200, forge.comments[first : first + query["per_page"]])
            elif self.command == "POST" and address.path in _PATHS["POST"]:
                number = len(forge.comments) + 1000
                forge.comments.append({"id": number, "body": data["body"], **ACCOUNT})
                self._answer(201, forge.comments[-1])
            elif self.command in _PATHS and any(map(address.path.startswith, _PATHS[self.command])):
                number = int(address.path.rpartition("/")[2])
                comment = next(one for one in forge.comments if one["id"] == number)
                comment["body"] = data["body"]
                self._answer(200, comment)
            else:
                self._answer(404, {})

        do_GET = do_POST = do_PATCH = do_PUT = _handle  # noqa: N815

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    forge.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield forge
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
