"""Settings and fixtures of all tests."""

import gc
import os
import signal
import sqlite3
import sys
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import is_hypothesis_test, settings

from tests import forkserver
from tests.report.browser import Browser
from unified_prof.cli import app

pytest_plugins = ["tests.costs"]
connect = sqlite3.connect

ROOT = Path(__file__).resolve().parent.parent

# Without deadlines: other programs on the machine would decide whether a test passes.
settings.register_profile("uprof", deadline=None)
settings.load_profile("uprof")
SETTINGS = "_hypothesis_internal_use_settings"

# Without bytecode each worker rewrites all assertions and each started process compiles the
# package, which takes a third of the quick suite.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
os.environ.pop("COLUMNS", None)  # Limits the width of text in pipes.

# Tests send SIGHUP and Ctrl-C, which nohup and background jobs ignore, also in child processes.
if hasattr(signal, "SIGHUP"):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests do not use the run-to-run variation learned on this machine.
os.environ["XDG_STATE_HOME"] = str(ROOT / ".cache" / "no state of tests")

# Processes started by tests import this checkout.
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, (str(ROOT), os.environ.get("PYTHONPATH", "")))
)

forkserver.install()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    forkserver.Popen.enabled = item.get_closest_marker("fresh_interpreter") is None
    forkserver.remove_variables()
    forkserver.Popen.nested = item.get_closest_marker("forks_of_commands") is not None


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name bytes by their length.

    Packed files contain their creation time, and workers must collect tests under equal names.
    """
    return f"{argname}-{len(val)}-bytes" if isinstance(val, bytes) else None


def reduce_examples(item: pytest.Item) -> None:
    """Reduce the examples of a property test to an eighth, for the quick suite."""
    test = getattr(item, "obj", None)
    test = getattr(test, "__func__", test)
    if test is None or not is_hypothesis_test(test) or hasattr(test, "tries_fewer"):
        return
    # Settings are stored on the test; a wrapped test cannot be decorated again.
    current = getattr(test, SETTINGS, None) or settings()
    fewer = max(5, current.max_examples // 8)
    setattr(test, SETTINGS, settings(current, max_examples=min(fewer, current.max_examples)))
    test.tries_fewer = True


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark cases beyond ``quick(cases=...)`` as slow; reduce examples in the quick suite."""
    seen: Counter[str] = Counter()
    for item in items:
        if "not slow" in item.config.option.markexpr:
            reduce_examples(item)
        if (quick := item.get_closest_marker("quick")) is not None:
            test = item.nodeid.partition("[")[0]
            seen[test] += 1
            if seen[test] > quick.kwargs["cases"]:
                item.add_marker(pytest.mark.slow)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Hide the million objects of pytest and of imports from the garbage collector.

    It would look at them again and again, and so would tracking, which searches for tensors.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(5_000, 20, 20)  # seldom: it takes 6 % of the time
        gc.enable()


def connect_without_sync(*arguments: Any, **options: Any) -> sqlite3.Connection:
    """Open a database; for tests, without waiting for the disk (20 ms per transaction)."""
    connection: sqlite3.Connection = connect(*arguments, **options)
    if sys._getframe(1).f_globals["__name__"].startswith("tests."):
        with suppress(sqlite3.Error):  # no database, or in use
            connection.execute("PRAGMA synchronous = OFF")
    return connection


@pytest.fixture(scope="session", autouse=True)
def skip_what_takes_time_in_each_test() -> Iterator[None]:
    """Do not wait for the disk, nor parse the pyproject.toml of this checkout for each command."""
    find = app.find_settings

    def find_other(start: Path | None = None) -> Path | None:
        found = find(start)
        return None if found == ROOT / "pyproject.toml" else found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(app, "find_settings", find_other)
        patch.setattr(os, "fsync", lambda file: None)
        patch.setattr(sqlite3, "connect", connect_without_sync)
        yield


@pytest.fixture(scope="session")
def shared() -> Path:
    """Return the directory of recordings made by others, or skip if it does not exist."""
    folder = ROOT.parent / "shared"
    if not (folder / "README.md").is_file():
        pytest.skip("needs recordings that are kept outside the repository")
    return folder


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a new directory, which is the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def browser_of_session() -> Iterator[Browser]:
    """Return the browser of all tests of this process."""
    with Browser() as browser:
        yield browser


@pytest.fixture
def window(browser_of_session: Browser) -> Browser:
    """Return the browser, without messages of earlier pages."""
    browser_of_session.console()
    return browser_of_session
