"""What every test can use."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import is_hypothesis_test, settings

from tests.report.browser import Browser

pytest_plugins = ["tests.costs"]

ROOT = Path(__file__).resolve().parent.parent

# No example has a deadline: other programs on the machine would decide whether a test passes.
settings.register_profile("uprof", deadline=None)
settings.load_profile("uprof")
SETTINGS = "_hypothesis_internal_use_settings"

# Where Python may not keep bytecode, each worker rewrites the assertions of all tests, and each
# process that a test starts compiles all of uprof: a third of what the quick suite takes.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Under nohup a hang-up is ignored, in the background of a shell Ctrl-C, by the processes that tests
# start as well; tests send both.
if hasattr(signal, "SIGHUP"):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# What was learned of this machine's noise is not what tests are judged by.
os.environ["XDG_STATE_HOME"] = str(ROOT / ".cache" / "no state of tests")

# Processes that a test starts import this checkout, whatever is installed.
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, (str(ROOT), os.environ.get("PYTHONPATH", "")))
)


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name bytes by their length: a packed file holds the time at which it was packed.

    Two workers that collect the same test under two names refuse to run any.
    """
    return f"{argname}-{len(val)}-bytes" if isinstance(val, bytes) else None


def with_fewer_examples(item: pytest.Item) -> None:
    """Have a test of properties try fewer examples: what the quick suite finds, it finds soon."""
    test = getattr(item, "obj", None)
    test = getattr(test, "__func__", test)
    if test is None or not is_hypothesis_test(test) or hasattr(test, "tries_fewer"):
        return
    # Where `settings` as a decorator keeps them; a test that was made cannot be decorated again.
    asked = getattr(test, SETTINGS, None) or settings()
    fewer = max(5, asked.max_examples // 8)
    setattr(test, SETTINGS, settings(asked, max_examples=min(fewer, asked.max_examples)))
    test.tries_fewer = True


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Make those cases slow that a test with many has beyond its ``quick(cases=...)``.

    Where slow tests are left out, properties are tried with an eighth of their examples.
    """
    seen: Counter[str] = Counter()
    for item in items:
        if "not slow" in item.config.option.markexpr:
            with_fewer_examples(item)
        if (quick := item.get_closest_marker("quick")) is not None:
            test = item.nodeid.partition("[")[0]
            seen[test] += 1
            if seen[test] > quick.kwargs["cases"]:
                item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="module", autouse=True)
def nothing_old_is_looked_through() -> None:
    """Hide from the garbage collector what earlier modules and imports have left alive.

    Tracking looks for tensors through all objects that there are: in a program these are the
    program's, here they would be a million of pytest's, of all tests collected.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def shared() -> Path:
    """Return the folder of recordings made by others; skip where it is not present."""
    folder = ROOT.parent / "shared"
    if not (folder / "README.md").is_file():
        pytest.skip("needs recordings that are kept outside the repository")
    return folder


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    """Give the tests of a module one browser."""
    with Browser() as browser:
        yield browser
