"""What pytest calls in every session, and the fixture; nothing heavy is imported unasked."""

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
    from unified_prof.integrations.pytest_uprof.session import Session
    from unified_prof.integrations.pytest_uprof.settings import Uprof

_FOLDER = pytest.StashKey[Path]()
"""Where what was measured lies until the session ends; made when there is something."""
_SESSION = pytest.StashKey["Session"]()
_USED = pytest.StashKey["Uprof"]()
_ONE_RUN = pytest.StashKey[bool]()
_CONTROLLER = "uprof"
"""What the controller of xdist tells its workers stands below this name."""

_RUN_OF = "UPROF_PYTEST_RUN"
"""Environment variable of a process that only measures one test, once, for another session."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("uprof", "measuring steps and comparing them (uprof)")
    add = group.addoption
    add(
        "--uprof-save",
        metavar="NAME",
        help="keep what tests measure as the newest version of the baselines NAME",
    )
    add(
        "--uprof-compare",
        metavar="NAME",
        nargs="?",
        const="",
        help="fail tests that are surely slower than the baseline NAME, or the newest one",
    )
    add("--uprof-max-regress", metavar="PCT", help="how much worse is too much (default: 5%%)")
    add(
        "--uprof-metric",
        metavar="METRIC",
        action="append",
        help="what is judged: total, forward, backward, peak-memory or operation:GLOB; "
        "may be repeated (default: total)",
    )
    add(
        "--uprof-store",
        metavar="STORE",
        help="where baselines are: a file or a SQLAlchemy URL (default: .uprof/baselines.sqlite "
        "of the root folder)",
    )
    add("--uprof-warmup", metavar="N", type=int, help="iterations before measuring (default: 2)")
    add("--uprof-iterations", metavar="N", type=int, help="iterations to measure (default: 10)")
    add(
        "--uprof-runs",
        metavar="N",
        type=int,
        help="times that a test is measured where it is saved or compared, each but the first in "
        "a process of its own (default: 3)",
    )
    add(
        "--uprof-fail-unclear",
        action="store_true",
        help="fail tests whose verdict is unclear as well",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker, and check the options where any is given."""
    config.addinivalue_line(
        "markers",
        "uprof(warmup, iterations, runs, max_regress): how the fixture `uprof` measures this test, "
        "and how much worse is too much",
    )
    if folder := os.environ.pop(_RUN_OF, None):
        from unified_prof.integrations.pytest_uprof import verdicts

        verdicts.only_measure(config, Path(folder))
        config.stash[_FOLDER], config.stash[_ONE_RUN] = Path(folder), True
    elif not hasattr(config, "workerinput") and any(
        getattr(config.option, f"uprof_{name}") is not None
        for name in ("save", "compare", "max_regress", "metric", "warmup", "iterations", "runs")
    ):
        from unified_prof.integrations.pytest_uprof import settings

        settings.check(config)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker of xdist where to leave what it measures, and how this session was begun."""
    config: pytest.Config = node.config
    asked = config.invocation_params
    node.workerinput[_CONTROLLER] = {
        "folder": str(_folder(config)),
        "arguments": [str(one) for one in asked.args],
        "directory": str(asked.dir),
    }


@pytest.fixture
def uprof(request: pytest.FixtureRequest) -> Uprof:
    """Return what measures: `uprof.run(step)`."""
    from unified_prof.integrations.pytest_uprof.settings import Uprof

    item = request.node
    item.stash[_USED] = found = Uprof(item, _session(request.config))
    return found


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, None]:
    """Judge what a test that did well has measured, as a part of the test."""
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
    """Save what was measured, in the session that the user began."""
    config = session.config
    if (used := _used(config)) is not None:
        used.end(session)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Show what was measured."""
    if (used := _used(config)) is not None:
        used.show(terminalreporter)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove what workers left."""
    folder = config.stash.get(_FOLDER, None)
    if folder is not None and _is_the_users(config):
        shutil.rmtree(folder, ignore_errors=True)


def _is_the_users(config: pytest.Config) -> bool:
    """Whether the user began this session: it is no worker, nor one run for another session."""
    return not hasattr(config, "workerinput") and not config.stash.get(_ONE_RUN, False)


def _folder(config: pytest.Config) -> Path:
    """Return where this session keeps what it measures; a worker has been told."""
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
        from unified_prof.integrations.pytest_uprof.session import Session

        told = getattr(config, "workerinput", {}).get(_CONTROLLER)
        one_run = config.stash.get(_ONE_RUN, False)
        config.stash[_SESSION] = Session(config, _folder(config), told, one_run=one_run)
    return config.stash[_SESSION]


def _used(config: pytest.Config) -> Session | None:
    """Return what there is to save or to show; None where no test asked for anything."""
    if not _is_the_users(config):
        return None
    folder = config.stash.get(_FOLDER, None)
    asked = config.getoption("uprof_save") is not None
    if asked or (folder is not None and folder.is_dir()):
        return _session(config)
    return None
