"""Verdicts on measured steps, their output, and repeated runs of a test.

Iterations of one process share its memory layout and the state of the machine, so they are not
separate runs (see `compare.confidence`). A test is therefore repeated in a separate process. The
process is started with the options and paths of this session, which load the same conftest files,
and its configuration selects the one test. It writes its results to a directory; output files of
other plugins are switched off.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import msgspec
import numpy as np
import pytest

from unified_prof.baselines import api, noise
from unified_prof.compare.comparable import TOTAL, Run
from unified_prof.compare.confidence import Noise
from unified_prof.compare.diff import comparability_warnings, diff
from unified_prof.compare.gate import Check, Limits, Verdict, gate
from unified_prof.errors import CaptureError
from unified_prof.integrations.pytest_uprof.settings import Settings

Outcome = Literal["measured", "no baseline", "pass", "regression", "inconclusive"]
# Number of operations that the message of a regression lists.
_TOP = 3


class Judged(msgspec.Struct, frozen=True):
    """Verdict on one step of a test."""

    outcome: Outcome
    # Median iteration time.
    new_ns: float | None
    base_ns: float | None = None
    baseline: str | None = None
    # Reason of the worst metric.
    reason: str = ""
    # Message of a failed test.
    message: str = ""


def measured(run: Run, outcome: Outcome) -> Judged:
    """Return the result of a step that is not compared."""
    return Judged(outcome, _median(run))


def judge(test: str, base: Run, new: Run, wanted: Settings) -> Judged:
    """Judge a step by the gate's rule.

    Raises:
        UsageError: The runs cannot be compared.
    """
    devices = [run.facts.get("device") for run in (base, new)]
    if None not in devices and devices[0] != devices[1]:
        reason = f"{base.label} was measured on {devices[0]}, this on {devices[1]}"
        return Judged("inconclusive", _median(new), _median(base), base.label, reason, reason)
    known = noise.load(new)
    limits = Limits(max_regress=wanted.max_regress)
    verdict = gate(base, new, wanted.metrics, limits, known)
    worst = next(check for check in verdict.checks if check.outcome == verdict.outcome)
    reason = worst.reason if worst.metric == TOTAL else f"{worst.metric}: {worst.reason}"
    message = "" if verdict.outcome == "pass" else _message(test, base, new, verdict, known)
    new_ns, base_ns = _medians(verdict) or (_median(new), _median(base))
    return Judged(verdict.outcome, new_ns, base_ns, base.label, reason, message)


def properties(judged: Judged, name: str) -> list[tuple[str, object]]:
    """Return the properties of the test case in a JUnit report."""
    prefix = f"uprof.{name}." if name else "uprof."
    found = {
        "outcome": judged.outcome,
        "iteration_ns": judged.new_ns,
        "baseline_iteration_ns": judged.base_ns,
        "baseline": judged.baseline,
        "reason": judged.reason or None,
    }
    return [(prefix + what, value) for what, value in found.items() if value is not None]


def table(judged: Mapping[str, Judged], *, compared: bool) -> list[str]:
    """Return a table of all steps as lines of text."""
    from unified_prof.report import names
    from unified_prof.report.document import Column, Document, name_column
    from unified_prof.report.terminal import render_text

    rows = list(judged.values())
    columns = [
        name_column("test", judged),
        Column("iteration", tuple(names.format_duration(one.new_ns) for one in rows)),
    ]
    if compared:
        columns += [
            Column("baseline", tuple(names.format_duration(one.base_ns) for one in rows)),
            name_column("outcome", (one.outcome for one in rows)),
            name_column("against", (one.baseline or "-" for one in rows)),
            Column(
                "why",
                tuple(names.neutral(one.reason or "-") for one in rows),
                is_name=True,
                is_prose=True,
            ),
        ]
    document = Document()
    document.table(columns)
    return render_text(document).splitlines()


def _message(test: str, base: Run, new: Run, verdict: Verdict, known: Noise | None) -> str:
    """Return the message of a failed test: reasons and the operations that changed most."""
    from unified_prof.report.operation_difference import difference_document
    from unified_prof.report.terminal import render_text

    found = diff(base, new, noise=known)
    lines = [f"uprof: {verdict.outcome} of {test} against {base.label}"]
    lines += [f"  {_line(check)}" for check in verdict.checks if check.outcome != "pass"]
    lines += [f"  note: {doubt}" for doubt in comparability_warnings(base, new)]
    if verdict.outcome == "regression":
        text = render_text(difference_document(found, top=_TOP))
        _, _, tables = text.partition("\n\n")
        lines += ["", *tables.rstrip().splitlines()] if tables else []
    return "\n".join(lines)


def _line(check: Check) -> str:
    from unified_prof.report.operation_difference import check_values

    return f"{check.metric}: {check_values(check)}: {check.reason}"


def _medians(verdict: Verdict) -> tuple[float, float] | None:
    """Return the judged times (candidate, baseline), without waiting if it is known."""
    for check in verdict.checks:
        if check.metric == TOTAL and check.comparison is not None:
            return check.comparison.new_median, check.comparison.base_median
    return None


def _median(run: Run) -> float | None:
    totals = run.totals.get(TOTAL)
    return None if totals is None or not len(totals) else float(np.median(totals))


ENVIRONMENT = "UPROF_PYTEST_RUN"
_FILE, _TEST = "measured.msgpack", "test"
_MAX_ERROR_LINES = 12
# Options of pytest and of known plugins that are switched off in repeated runs, because two
# processes must not write the same file.
_OFF: Mapping[str, object] = {
    "uprof_save": None,
    "uprof_compare": None,
    "xmlpath": None,
    "usepdb": False,
    "trace": False,
    "pastebin": None,
    "htmlpath": None,
    "report_log": None,
    "json_report": False,
    "allure_report_dir": None,
    "collectonly": False,
}


class Command:
    """Command line of a session, used to repeat one of its tests.

    Args:
        config: Configuration of pytest.
        controller: Data from the controller, in an xdist worker.
    """

    def __init__(self, config: pytest.Config, controller: Mapping[str, Any] | None) -> None:
        asked = config.invocation_params
        self._directory = Path(controller["directory"]) if controller else asked.dir
        self._arguments = list(controller["arguments"] if controller else map(str, asked.args))
        self._extra = [f"--rootdir={config.rootpath}"]
        if config.inipath is not None:
            self._extra += ["-c", str(config.inipath)]
        if config.pluginmanager.hasplugin("xdist"):
            self._extra += ["-n", "0"]
        if config.pluginmanager.hasplugin("pytest_cov"):
            self._extra += ["--no-cov"]

    def measure(self, item: pytest.Item, number: int, of: int) -> dict[str, Run]:
        """Run the test in a separate process and return the results by step name.

        Raises:
            CaptureError: The test failed there, or measured nothing.
        """
        _, _, within = plain_id(item).partition("::")
        with TemporaryDirectory(prefix="uprof-pytest-run-") as folder:
            (Path(folder) / _TEST).write_bytes(os.fsencode(f"{item.path}::{within}"))
            done = subprocess.run(
                [
                    *(sys.executable, "-m", "pytest", *self._arguments, *self._extra),
                    *("-o", f"cache_dir={folder}/cache"),
                ],
                cwd=self._directory,
                env={**os.environ, ENVIRONMENT: folder},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                check=False,
            )
            found = Path(folder) / _FILE
            if done.returncode == 0 and found.is_file():
                return load(found)
        printed = "\n".join(done.stdout.rstrip().splitlines()[-_MAX_ERROR_LINES:])
        raise CaptureError(
            f"run {number} of {of} in a separate process ended with exit code "
            f"{done.returncode} and "
            + ("measured nothing" if done.returncode == 0 else "no measurement")
            + f":\n{printed}",
            hint="runs=1 measures in this process only",
            slug="run-of-test-failed",
        )


def only_measure(config: pytest.Config, folder: Path) -> None:
    """Configure a session to measure one test only."""
    config.args = [os.fsdecode((folder / _TEST).read_bytes())]
    for name, value in _OFF.items():
        if hasattr(config.option, name):
            setattr(config.option, name, value)
    config.option.basetemp = str(folder / "temporary")
    if hasattr(config.option, "log_file"):
        config.option.log_file = str(folder / "log")


def plain_id(item: pytest.Item) -> str:
    """Return the id of a test without the group that xdist may append."""
    if item.parent is None:
        return item.nodeid
    plain = f"{item.parent.nodeid}::{item.name}"
    return plain if item.nodeid.startswith(f"{plain}@") else item.nodeid


def save(folder: Path, measured: Mapping[str, Run]) -> None:
    """Write results for `load`."""
    data = {name: api.dump(run) for name, run in measured.items()}
    (folder / _FILE).write_bytes(msgspec.msgpack.encode(data))


def load(file: Path) -> dict[str, Run]:
    """Return the results that `save` wrote."""
    data = msgspec.msgpack.decode(file.read_bytes(), type=dict[str, bytes])
    return {name: api.load(one, where=str(file)) for name, one in data.items()}


def step_run(measured: Mapping[str, Run], name: str) -> Run:
    """Return the run of one step.

    Raises:
        CaptureError: The process did not measure that step.
    """
    if name not in measured:
        raise CaptureError(
            f"the run in a separate process did not measure step {name!r}",
            hint="a test must measure the same steps every time",
            slug="run-of-test-failed",
        )
    return measured[name]
