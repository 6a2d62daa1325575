"""Language server of `uprof lsp`: costs of the newest run in the editor, over pygls."""

from __future__ import annotations

import ast
import atexit
import json
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

from unified_prof.base.text import source_hash
from unified_prof.errors import StoreError, UprofError, UsageError, missing_package
from unified_prof.integrations.source_costs import (
    LineCost,
    LineMap,
    SourceCosts,
    newest_run,
    read_source_costs,
    total,
)
from unified_prof.report import names
from unified_prof.report.names import finding_summary
from unified_prof.version import VERSION

OPEN_PAGE = "uprof.openPage"
RELOAD = "uprof.reload"
# Maximum sizes of a header line and of a message, bytes. Messages hold the text of one file.
_MAX_HEADER = 4096
_MAX_BODY = 64 << 20
_STALE = "the file has changed since the run: lines may be wrong"


@dataclass(frozen=True, slots=True)
class Mark:
    """Cost at a line of the current text (from 0), and its line when it ran (from 1)."""

    line: int
    cost: LineCost
    recorded: int


class OpenFile:
    """An open Python file with its costs.

    `text` is the text when it was opened, `changed_at` the Unix time of the last change of the
    file, s.
    """

    def __init__(self, costs: SourceCosts, name: str, text: str, changed_at: float) -> None:
        self._costs, self._name = costs, name
        recorded = costs.hashes.get(name)
        self.is_stale = (
            changed_at > costs.recorded_at
            if recorded is None
            else source_hash(text.encode()) != recorded
        )
        # The text that ran is not in the report: if the file has changed, lines may be wrong.
        self._before = lines_of(text)
        self._now = self._before

    def edit(self, text: str) -> None:
        """Take the current text."""
        self._now = lines_of(text)
        for name in ("marks", "scopes"):
            self.__dict__.pop(name, None)

    @cached_property
    def marks(self) -> tuple[Mark, ...]:
        """Costs at current lines, in order; lines that were edited have none."""
        lines = LineMap(self._before, self._now)
        found = [
            Mark(now - 1, cost, line)
            for line, cost in self._costs.files[self._name].items()
            if (now := lines.now(line)) is not None and now <= len(self._now)
        ]
        return tuple(sorted(found, key=lambda mark: mark.line))

    @cached_property
    def scopes(self) -> tuple[tuple[int, LineCost], ...]:
        """First line and total cost of each class and function with costs."""
        try:
            tree = ast.parse("\n".join(self._now))
        except (SyntaxError, ValueError, RecursionError, MemoryError):  # while it is edited
            return ()
        found = []
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
                inside = [mark.cost for mark in self.marks if first <= mark.line <= last]
                if inside:
                    found.append((first, total(inside)))
        return tuple(sorted(found, key=lambda one: one[0]))

    def query(self, line: int) -> str:
        """Return the name of a line, or of its file, in the page's table of lines."""
        recorded = next((mark.recorded for mark in self.marks if mark.line == line), None)
        return self._name if recorded is None else f"{self._name}:{recorded}"

    def end_of(self, line: int) -> int:
        """Return the length of a line in UTF-16 units, the positions of the protocol."""
        return len(self._now[line].encode("utf-16-le")) // 2


def lines_of(text: str) -> list[str]:
    """Return the lines of a text as Python and editors count them: not ended by form feeds."""
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def cost_text(cost: LineCost) -> str:
    """Return a cost in a few words: `linear 26.1 ms, 64 %, 6.3 MiB`."""
    parts = []
    if cost.total_ns is not None:
        parts.append(names.format_duration(cost.total_ns))
    if cost.percent is not None:
        parts.append(names.format_percent(cost.percent))
    if cost.size_bytes:
        parts.append(names.format_size(cost.size_bytes))
    return f"{names.neutral(cost.name)} {', '.join(parts)}".rstrip()


def cost_table(cost: LineCost) -> str:
    """Return a cost and its findings as Markdown."""
    rows = [
        (name, names.format_duration(value))
        for name, value in (
            ("total", cost.total_ns),
            ("forward", cost.forward_ns),
            ("backward", cost.backward_ns),
            ("recomputed", cost.recomputed_ns),
        )
        if value is not None
    ]
    if cost.size_bytes is not None:
        rows.append(("memory", names.format_size(cost.size_bytes)))
    lines = [f"**{_markdown(cost_text(cost))}**", "", "| per step | |", "|---|---|"]
    lines += [f"| {name} | {value} |" for name, value in rows]
    for one in cost.findings:
        lines += ["", f"{_markdown(finding_summary(one))}"]
        lines += [f"*Try:* {_markdown(one.advice)}"] if one.advice else []
    return "\n".join(lines)


def _markdown(text: str) -> str:
    """Return text that Markdown shows as it is."""
    return "".join(f"\\{one}" if one in "\\`*_{}[]<>()#!|~" else one for one in names.neutral(text))


class Costs:
    """The run to show, and the open files.

    `run` is the configured one; None: the newest in the workspace.
    """

    def __init__(self, run: Path | None) -> None:
        self._run = run
        self.folder: Path | None = None
        self.costs: SourceCosts | None = None
        self.files: dict[str, OpenFile] = {}

    def load(self) -> str | None:
        """Read the run; return why there is none, or None."""
        self.costs = None
        run = self._run or (None if self.folder is None else newest_run(self.folder))
        if run is None:
            return "no run in this workspace: record one with `uprof run`"
        try:
            self.costs = read_source_costs(run)
        except UprofError as err:
            return str(err)
        return None

    def open(self, uri: str, path: Path, text: str) -> OpenFile | None:
        """Return an opened file with its costs, None if the run has none of it."""
        self.files.pop(uri, None)
        if self.costs is None or (name := self.costs.file_of(path)) is None:
            return None
        try:
            changed_at = path.stat().st_mtime
        except OSError:
            changed_at = 0.0
        self.files[uri] = OpenFile(self.costs, name, text, changed_at)
        return self.files[uri]


def make_server(run: Path | None = None) -> Any:
    """Return the language server; `start_io(Input(sys.stdin.buffer))` serves stdio.

    Raises UsageError if pygls is not installed.
    """
    hint = "pip install 'unified-prof[editor]'"
    with missing_package("pygls (2 or newer) is not installed", hint=hint):
        from lsprotocol import types as lsp
        from pygls.lsp.server import LanguageServer
        from pygls.uris import to_fs_path
    # The editor shows pygls's errors; without a handler, Python prints their tracebacks.
    logging.getLogger("pygls").addHandler(logging.NullHandler())
    server: Any = LanguageServer("uprof", VERSION)
    shown, pages = Costs(run), Pages()

    def at(line: int, begin: int, end: int) -> Any:
        return lsp.Range(lsp.Position(line, begin), lsp.Position(line, end))

    def publish(uri: str) -> None:
        file = shown.files.get(uri)
        server.text_document_publish_diagnostics(
            lsp.PublishDiagnosticsParams(uri, [*diagnostics(file)] if file else [])
        )

    def diagnostics(file: OpenFile) -> Iterator[Any]:
        for mark in file.marks:
            for one in mark.cost.findings:
                text = finding_summary(one) + (f"; try: {one.advice}" if one.advice else "")
                yield lsp.Diagnostic(
                    at(mark.line, 0, file.end_of(mark.line)),
                    names.neutral(text),
                    severity=lsp.DiagnosticSeverity.Information,
                    code=one.kind,
                    source="uprof",
                )

    def open_document(document: Any) -> None:
        path = to_fs_path(document.uri)
        if path is not None:
            shown.open(document.uri, Path(path), document.source)
            publish(document.uri)

    def reload() -> None:
        why = shown.load()
        if why is not None:
            server.window_log_message(lsp.LogMessageParams(lsp.MessageType.Info, f"uprof: {why}"))
        for document in [*server.workspace.text_documents.values()]:
            open_document(document)

    @server.feature(lsp.INITIALIZED)  # type: ignore[untyped-decorator]
    def initialized(params: Any) -> None:
        folders = [*server.workspace.folders.values()]
        uri = folders[0].uri if folders else server.workspace.root_uri
        path = None if uri is None else to_fs_path(uri)
        shown.folder = None if path is None else Path(path)
        reload()

    @server.feature(lsp.TEXT_DOCUMENT_DID_OPEN)  # type: ignore[untyped-decorator]
    def did_open(params: Any) -> None:
        open_document(server.workspace.get_text_document(params.text_document.uri))

    @server.feature(lsp.TEXT_DOCUMENT_DID_CHANGE)  # type: ignore[untyped-decorator]
    def did_change(params: Any) -> None:
        uri = params.text_document.uri
        if (file := shown.files.get(uri)) is not None:
            file.edit(server.workspace.get_text_document(uri).source)
            publish(uri)

    @server.feature(lsp.TEXT_DOCUMENT_DID_CLOSE)  # type: ignore[untyped-decorator]
    def did_close(params: Any) -> None:
        shown.files.pop(params.text_document.uri, None)

    @server.feature(lsp.TEXT_DOCUMENT_INLAY_HINT)  # type: ignore[untyped-decorator]
    def inlay_hints(params: Any) -> list[Any]:
        file = shown.files.get(params.text_document.uri)
        first, last = params.range.start.line, params.range.end.line
        return [
            lsp.InlayHint(
                lsp.Position(mark.line, file.end_of(mark.line)),
                cost_text(mark.cost) + (" (stale)" if file.is_stale else ""),
                padding_left=True,
                tooltip=_STALE if file.is_stale else None,
            )
            for mark in (file.marks if file else ())
            if file and first <= mark.line <= last
        ]

    @server.feature(lsp.TEXT_DOCUMENT_CODE_LENS)  # type: ignore[untyped-decorator]
    def code_lenses(params: Any) -> list[Any]:
        uri = params.text_document.uri
        file = shown.files.get(uri)
        if file is None or shown.costs is None:
            return []
        whole = total(mark.cost for mark in file.marks)
        title = f"uprof: {shown.costs.path.name}, {cost_text(whole)}"
        if file.is_stale:
            title += f" ({_STALE})"
        found = [(0, title), *((line, cost_text(cost)) for line, cost in file.scopes)]
        return [
            lsp.CodeLens(at(line, 0, 0), lsp.Command(text, OPEN_PAGE, arguments=[uri, line]))
            for line, text in found
        ]

    @server.feature(lsp.TEXT_DOCUMENT_HOVER)  # type: ignore[untyped-decorator]
    def hover(params: Any) -> Any:
        file = shown.files.get(params.text_document.uri)
        for mark in file.marks if file else ():
            if mark.line == params.position.line:
                return lsp.Hover(lsp.MarkupContent(lsp.MarkupKind.Markdown, cost_table(mark.cost)))
        return None

    @server.command(RELOAD)  # type: ignore[untyped-decorator]
    def reload_run() -> str | None:
        """Read the newest run again."""
        reload()
        return None if shown.costs is None else str(shown.costs.path)

    @server.command(OPEN_PAGE)  # type: ignore[untyped-decorator]
    @server.thread()  # type: ignore[untyped-decorator]
    def open_page(uri: str, line: int) -> str | None:
        """Open the page of the run at the costs of a line; return its address."""
        file = shown.files.get(uri)
        if file is None or shown.costs is None:
            return None
        try:
            address = f"{pages.serve(shown.costs.path)}#by=line&q={quote(file.query(line))}"
        except UprofError as err:
            server.window_show_message(lsp.ShowMessageParams(lsp.MessageType.Error, str(err)))
            return None
        server.window_show_document(lsp.ShowDocumentParams(address, external=True))
        return address

    return server


class Input:
    """Messages of the editor, of limited size: pygls reads as many bytes as a header announces."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def readline(self) -> bytes:
        """Return the next header line."""
        line = self._stream.readline(_MAX_HEADER)
        if len(line) == _MAX_HEADER:
            raise UsageError(
                f"a header is longer than {_MAX_HEADER} bytes", slug="message-too-large"
            )
        return line

    def read(self, size: int) -> bytes:
        """Return the body of a message."""
        if size > _MAX_BODY:
            message = f"a message has {size} bytes, more than {_MAX_BODY}"
            raise UsageError(message, slug="message-too-large")
        return self._stream.read(size)


class Pages:
    """Pages of runs, served by `uprof view` until this process ends."""

    def __init__(self) -> None:
        self._served: dict[Path, tuple[subprocess.Popen[str], str]] = {}
        self._lock = threading.Lock()
        atexit.register(self.close)

    def serve(self, run: Path) -> str:
        """Return the address of the page of a run. Raises StoreError if the page cannot be made."""
        with self._lock:  # two clicks make one page
            if run not in self._served or self._served[run][0].poll() is not None:
                self._served[run] = _start_page(run)
            return self._served[run][1]

    def close(self) -> None:
        """End all servers."""
        for process, _ in self._served.values():
            process.terminate()


def _start_page(run: Path) -> tuple[subprocess.Popen[str], str]:
    """Start `uprof view`; return its process and the address of the page."""
    command = [sys.executable, "-m", "unified_prof", "view", str(run), "--no-open", "--json"]
    process = subprocess.Popen(
        [*command, "--quiet"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    answer = ""
    while not answer.endswith("}\n") and (line := process.stdout.readline()):
        answer += line
    if not answer:
        raise StoreError(
            f"the page of {run} could not be made", hint=f"uprof view {run}", slug="no-report"
        )
    return process, str(json.loads(answer)["url"])
