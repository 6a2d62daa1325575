"""CPU time of tests, including the processes that they started and awaited.

With ``--costs SECONDS`` the end of a run lists the total CPU time, the budget, and the tests that
are too expensive for the quick suite. Wall-clock time would depend on other programs.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Generator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

PROPERTY = "processor_s"
SLOW_S = 0.5
"""A case that takes longer is marked ``slow``; a quick case remains (see CONTRIBUTING.md)."""
SHOWN = 30

start_s = pytest.StashKey[float]()


def processor_s() -> float:
    """Return the CPU time so far of this process and its finished children."""
    times = os.times()  # in steps of 10 ms
    return time.process_time() + times.children_user + times.children_system


def functions(cases: dict[str, float]) -> dict[str, list[float]]:
    """Return the CPU time of the cases of each test function, most expensive first."""
    found: dict[str, list[float]] = defaultdict(list)
    for case, took_s in cases.items():
        found[case.partition("[")[0]].append(took_s)
    return dict(sorted(found.items(), key=lambda one: (-sum(one[1]), one[0])))


def report_lines(cases: dict[str, float], budget_s: float) -> list[str]:
    """Return the lines of the cost report."""
    total_s = sum(cases.values())
    share = "within" if total_s <= budget_s else "over"
    lines = [f"{total_s:.0f} s, {share} the budget of {budget_s:.0f} s"]
    expensive = {name: took for name, took in functions(cases).items() if max(took) > SLOW_S}
    lines += [
        f"{sum(took):6.2f} s  {name}" + (f" ({len(took)} cases)" if len(took) > 1 else "")
        for name, took in [*expensive.items()][:SHOWN]
    ]
    if expensive:
        lines.append(
            f"{len(expensive)} tests with a case over {SLOW_S} s: mark them slow, or some cases"
        )
    return lines


class Ledger:
    """Collects the costs of the tests of all workers."""

    def __init__(self, budget_s: float) -> None:
        self.budget_s = budget_s
        self.cases: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":
            took = [float(str(value)) for name, value in report.user_properties if name == PROPERTY]
            self.cases[report.nodeid] = sum(took)

    def pytest_terminal_summary(self, terminalreporter: TerminalReporter) -> None:
        terminalreporter.section("CPU time of tests")
        for line in report_lines(self.cases, self.budget_s):
            terminalreporter.write_line(line)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    item.stash[start_s] = processor_s()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.when == "teardown":  # includes setup and teardown of fixtures
        report.user_properties.append((PROPERTY, round(processor_s() - item.stash[start_s], 3)))
    return report


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--costs", type=float, metavar="SECONDS", help="list the CPU time of tests and this budget"
    )


def pytest_configure(config: pytest.Config) -> None:
    budget_s = config.getoption("--costs")
    if budget_s is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Ledger(budget_s), "costs of tests")
