"""Examples of the documentation work as printed.

Every command is parsed by the program's parser. Blocks are run page by page and in order, in a
directory with the files that they name (`recordings`); their outputs are compared only if the
block gives an exit code. A comment above a block gives further requirements:
`<!-- not run: REASON -->`, `<!-- with: NAME=KIND, ... -->`, `<!-- exit: N -->`.
"""

import ast
import importlib
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from tests import forkserver
from tests.cli.test_report import uprof
from tests.conftest import ROOT
from tests.docs.pages import PAGES, Block, blocks
from tests.docs.recordings import KINDS, provide
from unified_prof.cli.app import COMMANDS, app

SHELL = ("bash", "console", "sh", "")
RUN_ELSEWHERE = {"docs/from": "tests/cli/test_docs_from.py"}
"""Pages whose commands have their own test."""
FIGURES = ("performance.md", "validation.md", "architecture.md", "decisions.md")
"""Pages whose blocks are results and drawings."""
OPTIONAL = ("dask_jobqueue", "lightning", "transformers", "torch_npu")
_COMMAND = re.compile(
    rf"(?<![\w./'-])uprof ((?:{'|'.join(COMMANDS)})\b"
    r"(?:[^\n#|&;<>()\"'`]|\"[^\"]*\"|'[^']*'|\(\))*)"
)

# Neither needs a shell nor runs a program: such commands run in this process.
_ALONE = re.compile(r"uprof ((?!run|gate|view|watch|lsp|mcp)[\w ./=:,+@%-]+?) *(?:#.*)?")


def shell_text(block: Block) -> str:
    """Return the commands of a block without their output."""
    lines = block.text.splitlines()
    if any(line.startswith("$ ") for line in lines):
        lines = [line[2:] for line in lines if line.startswith("$ ")]
    return "\n".join(lines).replace("\\\n", " ") + "\n"


def commands_of(block: Block) -> Iterator[list[str]]:
    """Yield the arguments of every uprof command in a block."""
    if block.language in (*SHELL, "yaml"):
        text = re.sub(r"(?m)(^|\s)#.*", "", shell_text(block))
        for match in _COMMAND.finditer(text):
            yield shlex.split(match[1])


def blocks_with_commands() -> list[Block]:
    found = [block for page in PAGES for block in blocks(page) if any(commands_of(block))]
    return [block for block in found if block.page.name not in FIGURES]


def parse(words: list[str]) -> None:
    """Parse a command with the program's parser; raise its usage errors."""
    command: Any = app
    context = command.make_context("uprof", [], resilient_parsing=True)
    while hasattr(command, "list_commands"):
        name, *words = words
        found = command.get_command(context, name)
        assert found is not None, f"no command {name}"
        command = found
        if hasattr(command, "list_commands"):
            context = command.make_context(name, [], parent=context, resilient_parsing=True)
    try:
        command.make_context(command.name, [*words], parent=context)
    except click.exceptions.Exit:
        assert any(word.startswith("--help") for word in words)


def test_invalid_option_in_an_example_is_detected() -> None:
    parse(["report", "RUN", "--by", "module"])
    with pytest.raises(Exception, match=r"[Nn]o such option"):
        parse(["report", "RUN", "--bye", "module"])
    with pytest.raises(Exception, match="module"):
        parse(["report", "RUN", "--by", "modules"])


@pytest.mark.parametrize("block", blocks_with_commands(), ids=lambda block: block.where)
def test_each_command_parses(block: Block, place: Path) -> None:
    for words in commands_of(block):
        try:
            parse(words)
        except Exception as error:
            raise AssertionError(f"{block.where}: uprof {shlex.join(words)}: {error}") from error


@pytest.mark.parametrize(
    "block",
    [block for page in PAGES for block in blocks(page) if block.language == "python"],
    ids=lambda block: block.where,
)
def test_python_examples_use_existing_names(block: Block) -> None:
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("unified_prof"):
            if node.module.endswith(OPTIONAL):  # type: ignore[union-attr]
                continue
            module = importlib.import_module(node.module or "")
            for name in node.names:
                assert hasattr(module, name.name), f"{block.where}: {name.name}"
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "unified_prof"
        ):
            assert hasattr(importlib.import_module("unified_prof"), node.attr), node.attr


@pytest.mark.parametrize(
    "block",
    [block for page in PAGES for block in blocks(page) if block.language in ("toml", "yaml")],
    ids=lambda block: block.where,
)
def test_settings_and_job_files_are_well_formed(block: Block, place: Path) -> None:
    if block.language == "yaml":
        assert importlib.import_module("yaml").safe_load(block.text)
        return
    (place / "pyproject.toml").write_text(block.text, encoding="utf-8")
    for command in ("gate", "run", "report"):
        done = uprof(command, "nowhere", "--json")
        assert "wrong-setting" not in done.stderr, done.stderr
        assert "settings-unreadable" not in done.stderr, done.stderr


PAGES_RUN = [
    page
    for page in PAGES
    if not any(str(page.relative_to(ROOT)).startswith(one) for one in RUN_ELSEWHERE)
    and any(
        block.not_run is None and block.language in (*SHELL, "python") for block in blocks(page)
    )
    and page.name not in FIGURES
]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory that caches recordings for the pages."""
    return tmp_path_factory.mktemp("recordings")


@pytest.mark.slow
@pytest.mark.forks_of_commands
@pytest.mark.parametrize("page", PAGES_RUN, ids=lambda page: str(page.relative_to(ROOT)))
def test_examples_of_a_page_work(
    page: Path, tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("XDG_CACHE_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / ".home"))
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    names: dict[str, Any] = {"train_one_epoch": _train}
    for block in blocks(page):
        if block.not_run is not None:
            continue
        if block.language in SHELL and any(commands_of(block)):
            _prepare(block, _words_of(shell_text(block)), store)
            _run_shell(block)
        elif block.language == "python":
            _prepare(block, re.findall(r'"([\w./*-]+)"', block.text), store)
            names.setdefault("__name__", "example")
            exec(compile(block.text, block.where, "exec"), names)


def _words_of(text: str) -> list[str]:
    """Return the words of commands except their outputs, which follow -o or > somewhere."""
    words: list[str] = []
    outputs: set[str] = set()
    for line in text.splitlines():
        before = ""
        for word in shlex.split(line.replace("(", " ").replace(")", " "), comments=True):
            if before in ("-o", ">", ">>"):
                outputs.add(word)
            else:
                words += re.split(r"(?<!rank\*)[=:]", word) if "*" not in word else [word]
            before = word
    return [word for word in words if word not in outputs]


def _prepare(block: Block, words: list[str], store: Path) -> None:
    lines = block.page.read_text(encoding="utf-8").splitlines()
    above = re.fullmatch(r"<!-- with: (.+) -->", lines[block.line - 2]) if block.line > 1 else None
    requested = dict(one.split("=") for one in above[1].split(", ")) if above else {}
    for name, kind in requested.items():
        provide(name, kind, store)
    for word in dict.fromkeys(words):
        top = word if word in KINDS else word.partition("/")[0]
        if (
            top in KINDS
            and top not in requested
            and f"{top}/" not in requested
            and not Path(top).exists()
        ):
            provide(top, KINDS[top], store)


def _run_shell(block: Block) -> None:
    lines = block.page.read_text(encoding="utf-8").splitlines()
    above = re.fullmatch(r"<!-- exit: (\d+) -->", lines[block.line - 2])
    alone = [_ALONE.fullmatch(line) for line in shell_text(block).splitlines()]
    if not above and all(alone):
        for found in filter(None, alone):
            done_here = uprof(*shlex.split(found[1]))
            assert done_here.returncode == 0, f"{block.where}: {found[1]}: {done_here.stderr}"
        return
    binaries = Path("..", ".bin").resolve()
    binaries.mkdir(exist_ok=True)
    path = os.pathsep.join([str(binaries), str(Path(sys.executable).parent), os.environ["PATH"]])
    with forkserver.interpreter(binaries) as python:
        # The outcome of a gate depends on how busy this machine is, so any is accepted.
        (binaries / "uprof").write_text(
            f'#!/bin/bash\n"{python}" -m unified_prof "$@"\ncode=$?\n'
            'case "$1 $code" in "gate 1" | "gate 3") exit 0 ;; esac\nexit $code\n'
        )
        (binaries / "uprof").chmod(0o755)
        done = subprocess.run(
            ["bash", "-eu", "-o", "pipefail", "-c", shell_text(block)],
            env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    expected = int(above[1]) if above else 0
    assert done.returncode == expected, f"{block.where}: {done.stdout[-2000:]}\n{done.stderr}"
    assert "Traceback" not in done.stderr, block.where
    if above:
        printed = [line for line in block.text.splitlines() if not line.startswith("$ ")]
        assert (done.stdout + done.stderr).splitlines() == printed, block.where


def _train() -> None:
    import torch

    layer = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for _ in range(24):
        optimizer.zero_grad()
        layer(torch.ones(4, 8)).sum().backward()
        optimizer.step()
