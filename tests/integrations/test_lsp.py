"""`uprof lsp`, driven over stdio by the client of pygls."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.analysis.builders import memory_report, run_time_report
from unified_prof.base.text import source_hash
from unified_prof.errors import UsageError
from unified_prof.integrations.source_costs import (
    LineMap,
    file_and_line,
    names_line,
    newest_run,
    read_source_costs,
)
from unified_prof.recording.model import Finding

pytest.importorskip("pygls")
lsp = pytest.importorskip("lsprotocol.types")

SOURCE = """\
from torch import nn


class Net(nn.Module):
    def forward(self, x):
        x = self.linear(x)
        return x.relu()


def unused():
    pass
"""
LINEAR, RELU = 5, 6  # Lines with costs, from 0.
Session = Callable[[Any, str], Awaitable[None]]


def write_run(workspace: Path, content: str = SOURCE) -> Path:
    """Write the report of a run of model.py to a directory of the workspace."""
    folder = workspace / "uprof_model_1"
    folder.mkdir(parents=True)
    run_time_report(
        folder / "run_time.sqlite",
        [
            ("linear", 2.0, 4.0, [("model.py", LINEAR + 1)]),
            ("relu", 0.5, 1.5, [("model.py", RELU + 1)]),
        ],
        facts={
            "project_root": str(workspace),
            "source_hashes": json.dumps({"model.py": source_hash(content.encode())}),
        },
        iterations=[(i, 10.0, 2.5, 5.5, 9_000, 1) for i in range(5)],
    )
    memory_report(
        folder / "memory.sqlite",
        [],
        activations=[("linear", 3 << 20, [("model.py", LINEAR + 1)])],
        peak=9 << 20,
    )
    return folder


def edit(workspace: Path, session: Session, *options: str, text: str = SOURCE) -> list[Any]:
    """Open model.py in an editor, call `session`, and return the diagnostics that were shown."""
    from pygls.lsp.client import LanguageClient

    file = workspace / "model.py"
    file.write_text(text, encoding="utf-8")
    shown: list[Any] = []

    async def talk() -> None:
        client: Any = LanguageClient("editor", "1")

        @client.feature("textDocument/publishDiagnostics")  # type: ignore[untyped-decorator]
        def diagnose(params: Any) -> None:
            shown.append(params)

        @client.feature("window/showDocument")  # type: ignore[untyped-decorator]
        def show_document(params: Any) -> Any:
            return lsp.ShowDocumentResult(success=True)

        await client.start_io(sys.executable, "-m", "unified_prof", "lsp", *options)
        folder = lsp.WorkspaceFolder(workspace.as_uri(), "workspace")
        await client.initialize_async(
            lsp.InitializeParams(
                lsp.ClientCapabilities(),
                process_id=os.getpid(),
                root_uri=workspace.as_uri(),
                workspace_folders=[folder],
            )
        )
        client.initialized(lsp.InitializedParams())
        client.text_document_did_open(
            lsp.DidOpenTextDocumentParams(
                lsp.TextDocumentItem(file.as_uri(), "python", version=1, text=text)
            )
        )
        try:
            await session(client, file.as_uri())
        finally:
            await client.shutdown_async(None)
            client.exit(None)
            await client.stop()

    asyncio.run(asyncio.wait_for(talk(), 100))
    return shown


async def hints(client: Any, uri: str, first: int = 0, last: int = 100_000) -> dict[int, str]:
    """Return the inlay hints by line."""
    found = await client.text_document_inlay_hint_async(
        lsp.InlayHintParams(
            lsp.TextDocumentIdentifier(uri),
            lsp.Range(lsp.Position(first, 0), lsp.Position(last, 0)),
        )
    )
    return {one.position.line: one.label for one in found}


async def lenses(client: Any, uri: str) -> dict[int, list[str]]:
    found = await client.text_document_code_lens_async(
        lsp.CodeLensParams(lsp.TextDocumentIdentifier(uri))
    )
    by_line: dict[int, list[str]] = {}
    for one in found:
        by_line.setdefault(one.range.start.line, []).append(one.command.title)
    return by_line


async def hover(client: Any, uri: str, line: int) -> str:
    found = await client.text_document_hover_async(
        lsp.HoverParams(lsp.TextDocumentIdentifier(uri), lsp.Position(line, 4))
    )
    return "" if found is None else str(found.contents.value)


def change(client: Any, uri: str, version: int, text: str) -> None:
    client.text_document_did_change(
        lsp.DidChangeTextDocumentParams(
            lsp.VersionedTextDocumentIdentifier(version=version, uri=uri),
            [lsp.TextDocumentContentChangeWholeDocument(text)],
        )
    )


def test_lines_functions_and_classes_have_their_costs_until_they_are_edited(tmp_path: Path) -> None:
    write_run(tmp_path)

    async def session(client: Any, uri: str) -> None:
        assert await hints(client, uri) == {
            LINEAR: "linear 6.00 ms, 60.0 %, 3.00 MiB",
            RELU: "relu 2.00 ms, 20.0 %",
        }
        assert list(await hints(client, uri, RELU, RELU)) == [RELU]
        found = await lenses(client, uri)
        assert sorted(found) == [0, 3, 4]
        assert found[3] == found[4] == ["2 lines 8.00 ms, 80.0 %, 3.00 MiB"]
        assert found[0] == ["uprof: uprof_model_1, 2 lines 8.00 ms, 80.0 %, 3.00 MiB"]
        text = await hover(client, uri, LINEAR)
        assert "| forward | 2.00 ms |" in text
        assert "| backward | 4.00 ms |" in text
        assert "| memory | 3.00 MiB |" in text
        assert await hover(client, uri, 0) == ""

        # A page opens at the line.
        async def open_page(line: int) -> str:
            found = await client.workspace_execute_command_async(
                lsp.ExecuteCommandParams("uprof.openPage", [uri, line])
            )
            return str(found)

        address = await open_page(LINEAR)
        assert address.endswith(f"#by=line&q=model.py%3A{LINEAR + 1}")
        page, _, _ = address.partition("#")
        assert (await open_page(0)).startswith(f"{page}#")
        content = await asyncio.to_thread(lambda: urllib.request.urlopen(page).read())
        assert b"model.py:6" in content
        # Positions follow edits, and edited lines have no cost.
        change(client, uri, 2, f"# a comment\n\n{SOURCE}")
        assert list(await hints(client, uri)) == [LINEAR + 2, RELU + 2]
        assert sorted(await lenses(client, uri)) == [0, 5, 6]
        change(client, uri, 3, SOURCE.replace("self.linear(x)", "self.other(x)"))
        assert list(await hints(client, uri)) == [RELU]
        change(client, uri, 4, SOURCE.replace("    def forward", "    def ("))
        assert list(await hints(client, uri)) == [LINEAR, RELU]
        assert sorted(await lenses(client, uri)) == [0]  # it cannot be parsed at the moment
        change(client, uri, 5, "")
        assert await hints(client, uri) == {}
        change(client, uri, 6, SOURCE)
        assert list(await hints(client, uri)) == [LINEAR, RELU]

    edit(tmp_path, session)


@pytest.mark.slow
def test_findings_are_diagnostics_at_their_lines(tmp_path: Path) -> None:
    rms_norm = [("pow", 3.0), ("mean", 3.0), ("add", 1.0), ("rsqrt", 1.0), ("mul", 4.0)]
    run = tmp_path / "run_time.sqlite"
    run_time_report(
        run,
        [(name, ms, None, [("model.py", LINEAR + 1)]) for name, ms in rms_norm],
        iterations=[(i, 14.0, 12.0, None, 9_000, 1) for i in range(5)],
    )

    async def session(client: Any, uri: str) -> None:
        assert "Try:" in await hover(client, uri, LINEAR)
        change(client, uri, 2, f"\n{SOURCE}")
        await hints(client, uri)

    shown = edit(tmp_path, session, "--run", str(run))
    assert [[one.range.start.line for one in found.diagnostics] for found in shown] == [
        [LINEAR],
        [LINEAR + 1],
    ]
    (finding,) = shown[0].diagnostics
    assert finding.severity == lsp.DiagnosticSeverity.Information
    assert "RMSNorm" in finding.message


@pytest.mark.slow
def test_missing_damaged_and_stale_runs_do_not_end_the_server(tmp_path: Path) -> None:
    async def session(client: Any, uri: str) -> None:
        async def reload() -> str:
            command = lsp.ExecuteCommandParams("uprof.reload")
            return str(await client.workspace_execute_command_async(command))

        for content in (None, b"SQLite format 3\0" + bytes(range(256)) * 20):
            if content is not None:
                (tmp_path / "run_time.sqlite").write_bytes(content)
                await reload()
            assert await hints(client, uri) == {}
            assert await lenses(client, uri) == {}
            assert await hover(client, uri, 10**9) == ""
        run = write_run(tmp_path, content=f"{SOURCE}# later removed\n")
        await reload()
        assert all(text.endswith("(stale)") for text in (await hints(client, uri)).values())
        assert "changed since the run" in (await lenses(client, uri))[0][0]
        shutil.rmtree(run)
        write_run(tmp_path)
        assert (await reload()).endswith("uprof_model_1")
        assert list(await hints(client, uri)) == [LINEAR, RELU]

    edit(tmp_path, session)


def test_lines_are_those_of_python_and_the_editor() -> None:
    """A form feed or a line separator within a line ends no line."""
    from unified_prof.integrations.language_server import lines_of

    assert lines_of("a\x0cb\r\nc\u2028d\re\n") == ["a\x0cb", "c\u2028d", "e", ""]


def test_report_with_impossible_lines_is_read(tmp_path: Path) -> None:
    run_time_report(
        tmp_path / "run_time.sqlite",
        [("add", 1.0, None, [("model.py", 2)])],
        facts={"source_hashes": "[" * 100_000, "project_root": "\x01/../x"},
    )
    costs = read_source_costs(tmp_path)
    assert list(costs.files["model.py"]) == [2]
    assert costs.hashes == {}
    assert file_and_line(f"model.py:{'9' * 5_000}") is None
    assert file_and_line("model.py") is None


def test_finding_names_whole_lines_only() -> None:
    finding = Finding("kind", (), (), (), (), 1.0, "sum at src/model.py:12 and model.py:3")
    assert names_line(finding, "src/model.py:12")
    assert names_line(finding, "model.py:3")
    assert not names_line(finding, "src/model.py:1")
    assert not names_line(finding, "model.py:12")


def test_newest_run_is_shown(tmp_path: Path) -> None:
    assert newest_run(tmp_path) is None
    old = write_run(tmp_path / "a")
    new = write_run(tmp_path / "b")
    write_run(tmp_path / ".venv")
    for folder, age in ((old, 100), (new, 50)):
        for file in folder.iterdir():
            os.utime(file, (time.time() - age,) * 2)
    assert newest_run(tmp_path) == new


@pytest.mark.parametrize(
    "header", [b"Content-Length: %d\r\n\r\n" % (1 << 40), b"Content-Length: " + b"9" * 9_000]
)
def test_oversized_message_ends_the_server(header: bytes) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "unified_prof", "lsp"], input=header, capture_output=True, timeout=60
    )
    assert done.returncode == UsageError.exit_code
    assert b"[uprof:message-too-large]" in done.stderr
    assert b"Traceback" not in done.stderr


def test_file_of_ten_thousand_lines_takes_little_time(tmp_path: Path) -> None:
    from unified_prof.integrations.language_server import OpenFile

    text = "".join(f"def f{i}(x):\n    x = x + {i}\n    return x\n\n" for i in range(2_500))
    run_time_report(
        tmp_path / "run_time.sqlite",
        [("add", 1.0, None, [("model.py", 4 * i + 2)]) for i in range(1_000)],
    )
    costs = read_source_costs(tmp_path)
    began = time.process_time()
    file = OpenFile(costs, "model.py", text, 0.0)
    file.edit(text.replace("return x\n", "return  x\n", 1))
    assert len(file.marks) == len(file.scopes) == 1_000
    assert time.process_time() - began < 1  # 0.1 s on an idle machine


@given(st.lists(st.sampled_from("abc"), max_size=12), st.lists(st.sampled_from("abc"), max_size=12))
def test_mapped_lines_are_equal_and_in_order(before: list[str], now: list[str]) -> None:
    lines = LineMap(before, now)
    mapped = [(line, lines.now(line)) for line in range(1, len(before) + 1)]
    known = [(line, found) for line, found in mapped if found is not None]
    assert all(before[line - 1] == now[found - 1] for line, found in known)
    assert [found for _, found in known] == sorted({found for _, found in known})
    assert lines.now(0) is lines.now(len(before) + 1) is None
    if before == now:
        assert len(known) == len(before)


def test_message_that_is_not_json_is_an_error_in_the_editor_without_a_traceback() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "unified_prof", "lsp"],
        input=b"Content-Length: 1\r\n\r\n{",
        capture_output=True,
        timeout=60,
    )
    assert b"window/showMessage" in done.stdout
    assert (done.returncode, done.stderr) == (0, b"")
