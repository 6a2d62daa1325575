"""Plugin of coverage for `scripts/mutate.py --record`: lines belong to the test that runs them.

Tests start processes, which run lines for them. The test is in a variable that processes inherit:
a new interpreter has it when it imports the package, a fork of `tests/forkserver.py` gets it from
the server, and other forks know it.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import Any

TEST = "UPROF_MUTATE_TEST"


def coverage_init(_registry: Any, _options: Any) -> None:
    """Follow the variable in this process."""
    _begin()


@functools.cache  # forks have the hooks of their parents
def _begin() -> None:
    sys.addaudithook(_follow)


@functools.cache
def _follow_in_forks() -> None:  # after coverage, which starts again in each fork
    os.register_at_fork(after_in_child=_again)


def _follow(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "os.putenv" and arguments[0] == TEST.encode():
        _follow_in_forks()
        _switch(os.fsdecode(arguments[1]))
    elif event == "import" and arguments[0] == "unified_prof":
        _again()


def _again() -> None:
    if TEST in os.environ:
        _switch(os.environ[TEST])


def _switch(test: str) -> None:
    if (current := sys.modules["coverage"].Coverage.current()) is not None:
        current.switch_context(test)
