"""Hooks and fixture of the pytest plugin; heavy imports happen on first use."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from unified_prof.integrations.pytest_uprof.fixture import Uprof
    from unified_prof.integrations.pytest_uprof.verdicts import Session

# Directory of the results until the session ends; created with the first result.
_FOLDER = pytest.StashKey[Path]()
_SESSION = pytest.StashKey["Session"]()
_USED = pytest.StashKey["Uprof"]()
_ONE_RUN = pytest.StashKey[bool]()
_CONTROLLER = "uprof"  # Key of the data that the xdist controller sends to its workers.

# Environment variable of a process that measures one test once, for another session.
_RUN_OF = "UPROF_PYTEST_RUN"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("uprof", "measure steps and compare them (uprof)")
    add = group.addoption
    add(
        "--uprof-save",
        metavar="NAME",
        help="save results of tests as new versions of baseline NAME",
    )
    add(
        "--uprof-compare",
        metavar="NAME",
        nargs="?",
        const="",
        help="fail tests that are certainly slower than baseline NAME, or the newest one",
    )
    add("--uprof-max-regress", metavar="PCT", help="largest accepted regression (default: 5%%)")
    add(
        "--uprof-metric",
        metavar="METRIC",
        action="append",
        help="metric to judge: total, forward, backward, peak-memory or operation:GLOB; "
        "repeatable (default: total)",
    )
    add(
        "--uprof-store",
        metavar="STORE",
        help="baseline store: a file or a SQLAlchemy URL (default: .uprof/baselines.sqlite "
        "of the root directory)",
    )
    add("--uprof-warmup", metavar="N", type=int, help="iterations before measuring (default: 2)")
    add("--uprof-iterations", metavar="N", type=int, help="iterations to measure (default: 10)")
    add(
        "--uprof-runs",
        metavar="N",
        type=int,
        help="runs of a saved or compared test; all but the first in separate processes "
        "(default: 3)",
    )
    add(
        "--uprof-fail-inconclusive",
        action="store_true",
        help="also fail tests with an inconclusive verdict",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker and check the options."""
    config.addinivalue_line(
        "markers",
        "uprof(warmup, iterations, runs, max_regress): settings of fixture `uprof` for a test",
    )
    if folder := os.environ.pop(_RUN_OF, None):
        from unified_prof.integrations.pytest_uprof import verdicts

        verdicts.only_measure(config, Path(folder))
        config.stash[_FOLDER], config.stash[_ONE_RUN] = Path(folder), True
    elif not hasattr(config, "workerinput") and any(
        getattr(config.option, f"uprof_{name}") is not None
        for name in ("save", "compare", "max_regress", "metric", "warmup", "iterations", "runs")
    ):
        from unified_prof.integrations.pytest_uprof import verdicts

        verdicts.check(config)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Send the result directory and the command line of the session to an xdist worker."""
    config: pytest.Config = node.config
    asked = config.invocation_params
    node.workerinput[_CONTROLLER] = {
        "folder": str(_folder(config)),
        "arguments": [str(one) for one in asked.args],
        "directory": str(asked.dir),
    }


@pytest.fixture
def uprof(request: pytest.FixtureRequest) -> Uprof:
    """Return an object that measures a step: `uprof.run(step)`."""
    from unified_prof.integrations.pytest_uprof.fixture import Uprof

    item = request.node
    item.stash[_USED] = found = Uprof(item, _session(request.config))
    return found


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, None]:
    """Judge the results of a passed test, as part of the test."""
    outcome = yield
    used = item.stash.get(_USED, None)
    if used is None or outcome.excinfo is not None:
        return
    try:
        used.complete()
    except BaseException as err:
        if not hasattr(outcome, "force_exception"):  # pluggy before 1.1
            raise
        outcome.force_exception(err)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Save the results, in the session that the user started."""
    config = session.config
    if (used := _used(config)) is not None:
        used.end(session)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Show the results."""
    if (used := _used(config)) is not None:
        used.show(terminalreporter)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Delete the results that workers wrote."""
    folder = config.stash.get(_FOLDER, None)
    if folder is not None and _is_user_session(config):
        shutil.rmtree(folder, ignore_errors=True)


def _is_user_session(config: pytest.Config) -> bool:
    """Return True if the user started this session: not a worker, not a run for another session."""
    return not hasattr(config, "workerinput") and not config.stash.get(_ONE_RUN, False)


def _folder(config: pytest.Config) -> Path:
    """Return the result directory of this session; workers get it from the controller."""
    if _FOLDER not in config.stash:
        told = getattr(config, "workerinput", {}).get(_CONTROLLER)
        config.stash[_FOLDER] = (
            Path(told["folder"])
            if told is not None
            else Path(tempfile.gettempdir()) / f"uprof-pytest-{secrets.token_hex(8)}"
        )
    return config.stash[_FOLDER]


def _session(config: pytest.Config) -> Session:
    if _SESSION not in config.stash:
        from unified_prof.integrations.pytest_uprof.verdicts import Session

        told = getattr(config, "workerinput", {}).get(_CONTROLLER)
        one_run = config.stash.get(_ONE_RUN, False)
        config.stash[_SESSION] = Session(config, _folder(config), told, one_run=one_run)
    return config.stash[_SESSION]


def _used(config: pytest.Config) -> Session | None:
    """Return the session if there is something to save or show, else None."""
    if not _is_user_session(config):
        return None
    folder = config.stash.get(_FOLDER, None)
    asked = config.getoption("uprof_save") is not None
    if asked or (folder is not None and folder.is_dir()):
        return _session(config)
    return None
