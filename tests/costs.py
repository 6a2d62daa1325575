"""What tests cost: processor time of each, of this process and of those it started and awaited.

Time on the clock would say what other programs on the machine do. With ``--costs SECONDS`` the end
of a run says what all tests took, beside the budget, and which are too dear for the quick suite.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Generator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

PROPERTY = "processor_s"
DEAR_S = 0.8
"""A case that takes longer is ``slow``; what it shows keeps a quick one (see CONTRIBUTING.md)."""
SHOWN = 30

begun = pytest.StashKey[float]()


def processor_s() -> float:
    """Return the processor time so far of this process and of its children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def functions(cases: dict[str, float]) -> dict[str, list[float]]:
    """Return what the cases of each test function took, the dearest first."""
    found: dict[str, list[float]] = defaultdict(list)
    for case, took_s in cases.items():
        found[case.partition("[")[0]].append(took_s)
    return dict(sorted(found.items(), key=lambda one: (-sum(one[1]), one[0])))


def told(cases: dict[str, float], budget_s: float) -> list[str]:
    """Return the lines of the report."""
    total_s = sum(cases.values())
    share = "within" if total_s <= budget_s else "over"
    lines = [f"{total_s:.0f} s, {share} the budget of {budget_s:.0f} s"]
    dear = {name: took for name, took in functions(cases).items() if max(took) > DEAR_S}
    lines += [
        f"{sum(took):6.2f} s  {name}" + (f" ({len(took)} cases)" if len(took) > 1 else "")
        for name, took in [*dear.items()][:SHOWN]
    ]
    if dear:
        lines.append(
            f"{len(dear)} tests with a case over {DEAR_S} s: mark them slow, or some cases"
        )
    return lines


class Ledger:
    """Gathers the costs of the tests of all workers, where the results are shown."""

    def __init__(self, budget_s: float) -> None:
        self.budget_s = budget_s
        self.cases: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":
            took = [float(str(value)) for name, value in report.user_properties if name == PROPERTY]
            self.cases[report.nodeid] = sum(took)

    def pytest_terminal_summary(self, terminalreporter: TerminalReporter) -> None:
        terminalreporter.section("processor time of tests")
        for line in told(self.cases, self.budget_s):
            terminalreporter.write_line(line)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    item.stash[begun] = processor_s()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.when == "teardown":  # with what fixtures took to make and to unmake
        report.user_properties.append((PROPERTY, round(processor_s() - item.stash[begun], 3)))
    return report


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--costs", type=float, metavar="SECONDS", help="say what tests took, beside this budget"
    )


def pytest_configure(config: pytest.Config) -> None:
    budget_s = config.getoption("--costs")
    if budget_s is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Ledger(budget_s), "costs of tests")
