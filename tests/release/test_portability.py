"""Reading works without the features that Windows or macOS lack, and in every locale."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.source_trees import nodes
from unified_prof.sqlite import atomic

pytestmark = pytest.mark.fresh_interpreter

POSIX_MODULES = {
    *("fcntl", "grp", "posix", "pty", "pwd", "readline", "resource", "syslog", "termios", "tty")
}
# Packages that read files; none of them waits for a device or runs a program.
READING = (
    *("analysis", "arrays", "baselines", "cluster", "decoders", "export", "migrate", "models"),
    *("report", "store"),
)
TEXT_CALLS = {"read_text", "write_text"}


def calls(path: Path) -> list[ast.Call]:
    return [node for node in nodes("unified_prof")[path] if isinstance(node, ast.Call)]


def name_of(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def has_encoding(call: ast.Call) -> bool:
    return any(word.arg in ("encoding", None) for word in call.keywords)


def mode_of(call: ast.Call) -> str:
    """Return the mode in which a file is opened, or "b" if the call opens no text file."""
    by_name = [word.value for word in call.keywords if word.arg == "mode"]
    first = 0 if isinstance(call.func, ast.Attribute) else 1
    modes = by_name or call.args[first : first + 1]
    if not modes:
        return "r"
    value = modes[0].value if isinstance(modes[0], ast.Constant) else "b"
    return value if isinstance(value, str) else "b"


def opens_text(call: ast.Call) -> bool:
    if name_of(call) in TEXT_CALLS:
        return not (isinstance(call.func, ast.Attribute) and "formatter" in ast.dump(call.func))
    if name_of(call) != "open" or not isinstance(call.func, (ast.Name, ast.Attribute)):
        return False
    if isinstance(call.func, ast.Attribute) and not call.keywords and not call.args:
        return False  # opens something else: a web browser, a member of an archive
    return "b" not in (mode := mode_of(call)) and set(mode) <= set("rwxat+")


@pytest.mark.slow
def test_text_files_are_opened_with_an_explicit_encoding() -> None:
    without_encoding = [
        f"{path.relative_to(ROOT)}:{call.lineno}"
        for path in nodes("unified_prof")
        for call in calls(path)
        if opens_text(call) and not has_encoding(call)
    ]
    assert without_encoding == []


@pytest.mark.slow
def test_posix_modules_are_not_imported_at_module_level() -> None:
    found = []
    for path in nodes("unified_prof"):
        for node in ast.parse(path.read_bytes()).body:
            names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            found += [f"{path.name}: {name}" for name in names if name in POSIX_MODULES]
    assert found == []


# Additions to the standard library after the oldest supported Python.
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
    """Return the names used in a module that the oldest supported Python lacks."""
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


@pytest.mark.slow
@pytest.mark.skipif(sys.version_info < (3, 11), reason="an older Python fails on its own")
def test_only_features_of_the_oldest_python_are_used() -> None:
    assert [one for path in nodes("unified_prof") for one in newer(path)] == []


# Removes what Windows lacks after the import of the standard library and the dependencies.
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


def run_like_windows(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    begin = f"POSIX = {POSIX_MODULES!r}\nNAMES = {reading_modules()!r}\n{AS_ON_WINDOWS}"
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder)}
    return subprocess.run(
        [sys.executable, "-c", begin + code],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )


@pytest.mark.slow
def test_modules_import_without_posix_features(tmp_path: Path) -> None:
    done = run_like_windows(EVERY_MODULE, tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_reports_are_written_and_read_without_posix_features(tmp_path: Path) -> None:
    done = run_like_windows(READ, tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "x.html").is_file()


@pytest.mark.parametrize("system", ["posix", "nt"])
def test_written_files_are_flushed_to_disk_on_each_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: str
) -> None:
    """Windows cannot open directories, and flushes only files opened for writing."""
    opened: list[tuple[Path, int]] = []
    real = os.open

    def record_open(path: Path, flags: int, *rest: int) -> int:
        opened.append((Path(path), flags))
        return real(path, flags, *rest)

    file = tmp_path / "file"
    file.write_bytes(b"x")
    monkeypatch.setattr(os, "open", record_open)
    if system == "nt":
        monkeypatch.delattr(os, "O_DIRECTORY")
        monkeypatch.setattr(atomic, "_WINDOWS", True)
    atomic._fsync(file)
    atomic._fsync(tmp_path)
    if system == "nt":
        assert opened == [(file, os.O_RDWR)]
    else:
        assert [path for path, _ in opened] == [file, tmp_path]
