"""Reading needs nothing that Windows or macOS lack, and no locale decides how files are read."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.source_trees import nodes
from unified_prof.sqlite import atomic

POSIX_MODULES = {
    *("fcntl", "grp", "posix", "pty", "pwd", "readline", "resource", "syslog", "termios", "tty")
}
# Those that read files: nothing of them waits for a device or drives a program.
READING = (
    *("analysis", "arrays", "baselines", "cluster", "decoders", "export", "migrate", "models"),
    *("report", "store"),
)
TEXT_CALLS = {"read_text", "write_text"}


def calls(path: Path) -> list[ast.Call]:
    return [node for node in nodes("unified_prof")[path] if isinstance(node, ast.Call)]


def name_of(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def says_encoding(call: ast.Call) -> bool:
    return any(word.arg in ("encoding", None) for word in call.keywords)


def mode_of(call: ast.Call) -> str:
    """Return the mode a file is opened in; "b" where the call is no opening of a text."""
    by_name = [word.value for word in call.keywords if word.arg == "mode"]
    first = 0 if isinstance(call.func, ast.Attribute) else 1
    given = by_name or call.args[first : first + 1]
    if not given:
        return "r"
    value = given[0].value if isinstance(given[0], ast.Constant) else "b"
    return value if isinstance(value, str) else "b"


def opens_text(call: ast.Call) -> bool:
    if name_of(call) in TEXT_CALLS:
        return not (isinstance(call.func, ast.Attribute) and "formatter" in ast.dump(call.func))
    if name_of(call) != "open" or not isinstance(call.func, (ast.Name, ast.Attribute)):
        return False
    if isinstance(call.func, ast.Attribute) and not call.keywords and not call.args:
        return False  # something else that opens: a webbrowser, a member of an archive
    return "b" not in (mode := mode_of(call)) and set(mode) <= set("rwxat+")


def test_text_files_are_opened_with_an_explicit_encoding() -> None:
    open_to_doubt = [
        f"{path.relative_to(ROOT)}:{call.lineno}"
        for path in nodes("unified_prof")
        for call in calls(path)
        if opens_text(call) and not says_encoding(call)
    ]
    assert open_to_doubt == []


@pytest.mark.slow
def test_posix_modules_are_not_imported_at_module_level() -> None:
    found = []
    for path in nodes("unified_prof"):
        for node in ast.parse(path.read_bytes()).body:
            names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            found += [f"{path.name}: {name}" for name in names if name in POSIX_MODULES]
    assert found == []


# What the standard library got after the oldest Python that is supported.
NEWER = {
    "asyncio": {"Runner", "TaskGroup", "timeout"},
    "contextlib": {"chdir"},
    "datetime": {"UTC"},
    "enum": {"ReprEnum", "StrEnum", "member", "nonmember", "verify"},
    "hashlib": {"file_digest"},
    "itertools": {"batched"},
    "math": {"cbrt", "exp2", "sumprod"},
    "operator": {"call"},
    "typing": {
        *("LiteralString", "Never", "NotRequired", "Required", "Self", "TypeVarTuple", "Unpack"),
        *("assert_never", "assert_type", "override", "reveal_type"),
    },
    "warnings": {"deprecated"},
}


def newer(path: Path) -> list[str]:
    """Return what a module uses that the oldest supported Python does not have."""
    found = []
    for node in nodes("unified_prof")[path]:
        if isinstance(node, ast.ImportFrom):
            names = {one.name for one in node.names} & NEWER.get(node.module or "", set())
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            names = {node.attr} & NEWER.get(node.value.id, set())
        elif type(node).__name__ == "TryStar":
            names = {"except*"}
        else:
            continue
        found += [f"{path.name}: {name}" for name in names]
    return found


@pytest.mark.skipif(sys.version_info < (3, 11), reason="an older Python fails by itself")
def test_only_features_of_the_oldest_python_are_used() -> None:
    assert [one for path in nodes("unified_prof") for one in newer(path)] == []


# Forgets what Windows lacks, once the standard library and what we build on have been imported.
AS_ON_WINDOWS = """
import importlib, os, signal, sys
import alembic, alembic.command, msgspec, numpy, rich.console, sqlalchemy, click  # noqa
import asyncio, concurrent.futures, multiprocessing.connection, multiprocessing.context  # noqa
import http.server, logging, select, shutil, socket, sqlite3, subprocess, tempfile  # noqa
import multiprocessing.pool, multiprocessing.shared_memory, webbrowser  # noqa

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in MISSING:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

MISSING = {"torch", "torch_npu", *POSIX}
sys.meta_path.insert(0, Absent())
for name in POSIX:
    sys.modules.pop(name, None)
for name in ("fork", "forkpty", "getuid", "geteuid", "getgid", "getpgid", "getsid", "killpg",
             "setsid", "mkfifo", "sched_getaffinity", "sysconf", "uname", "wait4", "pread",
             "pwrite", "chown", "fchmod", "statvfs", "getloadavg", "register_at_fork",
             "O_DIRECTORY", "O_NONBLOCK", "O_NOFOLLOW", "O_CLOEXEC", "SEEK_DATA", "SEEK_HOLE",
             "pidfd_open", "posix_fadvise", "nice", "getpriority", "ttyname"):
    vars(os).pop(name, None)
for name in [one for one in vars(signal) if one.startswith("SIG") and one not in
             ("SIGABRT", "SIGFPE", "SIGILL", "SIGINT", "SIGSEGV", "SIGTERM", "SIG_DFL", "SIG_IGN")]:
    if name.isupper():
        delattr(signal, name)
select.__dict__.pop("poll", None)
"""
EVERY_MODULE = """
for name in NAMES:
    importlib.import_module(name)
"""
READ = """
import unified_prof
from unified_prof.cli.app import main
from unified_prof.migrate.upgrade import create
from pathlib import Path
create(Path("x.db"), "msprof", "latest")
for arguments in (["db", "check", "x.db"], ["report", "x.db"], ["report", "x.db", "-o", "x.html"],
                  ["doctor", "--json"]):
    try:
        main(arguments)
    except SystemExit as ended:
        assert not ended.code, (arguments, ended.code)
"""


def reading_modules() -> list[str]:
    found = []
    for path in nodes("unified_prof"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if path.stem != "__main__" and parts[1] in READING:
            found.append(".".join(parts).removesuffix(".__init__"))
    return found


def as_on_windows(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    begin = f"POSIX = {POSIX_MODULES!r}\nNAMES = {reading_modules()!r}\n{AS_ON_WINDOWS}"
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder)}
    return subprocess.run(
        [sys.executable, "-c", begin + code],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.slow
def test_modules_import_without_posix_features(tmp_path: Path) -> None:
    done = as_on_windows(EVERY_MODULE, tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_reports_are_written_and_read_without_posix_features(tmp_path: Path) -> None:
    done = as_on_windows(READ, tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "x.html").is_file()


@pytest.mark.parametrize("system", ["posix", "nt"])
def test_written_files_are_flushed_to_disk_on_each_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: str
) -> None:
    """Windows opens no folder, and flushes only what was opened for writing."""
    opened: list[tuple[Path, int]] = []
    real = os.open

    def noted(path: Path, flags: int, *rest: int) -> int:
        opened.append((Path(path), flags))
        return real(path, flags, *rest)

    file = tmp_path / "file"
    file.write_bytes(b"x")
    monkeypatch.setattr(os, "open", noted)
    if system == "nt":
        monkeypatch.delattr(os, "O_DIRECTORY")
        monkeypatch.setattr(atomic, "_WINDOWS", True)
    atomic._fsync(file)
    atomic._fsync(tmp_path)
    if system == "nt":
        assert opened == [(file, os.O_RDWR)]
    else:
        assert [path for path, _ in opened] == [file, tmp_path]
