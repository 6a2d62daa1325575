"""Session and settings of the plugin, verdicts on measured steps, and repeated runs of a test.

Arguments of a call take precedence over the marker, and the marker over options.

Iterations of one process share its memory layout and the state of the machine, so they are not
separate runs (see `compare.confidence`). A test is therefore repeated in a separate process. The
process is started with the options and paths of this session, which load the same conftest files,
and its configuration selects the one test. It writes its results to a directory; output files of
other plugins are switched off.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from unified_prof.base.run_spec import ITERATIONS, WARMUP
from unified_prof.baselines import api, noise
from unified_prof.baselines.store import MAX_NAME, Entry, NewBaseline
from unified_prof.compare.comparable import TOTAL, Run, pool
from unified_prof.compare.confidence import Noise
from unified_prof.compare.diff import comparability_warnings, diff
from unified_prof.compare.gate import Limits, Verdict, check_metrics, gate, parse_fraction
from unified_prof.errors import CaptureError, StoreError, UprofError, UsageError

RUNS = 3
MARKER = "uprof"
# Separates baseline name and test in the names of the store.
SEPARATOR = ":"
_KNOWN = ("warmup", "iterations", "runs", "max_regress")


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of one test."""

    warmup: int
    iterations: int
    runs: int
    max_regress: float
    metrics: Sequence[str]
    fail_inconclusive: bool


def settings_of(item: pytest.Item, given: Mapping[str, Any]) -> Settings:
    """Return the settings of a test.

    Arguments of the call (`given`) are None if not given. Raises UsageError if a value is not
    valid.
    """
    marked: dict[str, Any] = {}
    for marker in reversed(list(item.iter_markers(MARKER))):  # the closest one last
        unknown = [name for name in marker.kwargs if name not in _KNOWN]
        if marker.args or unknown:
            what = f"unknown argument {unknown[0]!r}" if unknown else "positional argument"
            raise UsageError(
                f"@pytest.mark.uprof: {what}",
                hint=f"it takes {', '.join(_KNOWN)}",
                slug="wrong-option-value",
            )
        marked |= marker.kwargs
    option = item.config.option
    chosen: dict[str, Any] = {
        "warmup": WARMUP,
        "iterations": ITERATIONS,
        "runs": RUNS,
        "max_regress": "5%",
    }
    for name in chosen:
        for value in (getattr(option, f"uprof_{name}"), marked.get(name), given.get(name)):
            chosen[name] = chosen[name] if value is None else value
    return Settings(
        warmup=_count("warmup", chosen["warmup"], 0),
        iterations=_count("iterations", chosen["iterations"], 1),
        runs=_count("runs", chosen["runs"], 1),
        max_regress=parse_fraction(str(chosen["max_regress"]), "max_regress"),
        metrics=tuple(option.uprof_metric or ("total",)),
        fail_inconclusive=option.uprof_fail_inconclusive,
    )


def check(config: pytest.Config) -> None:
    """Check the options before any test runs.

    Raises pytest.UsageError if an option is not valid.
    """
    option = config.option
    try:
        # `addopts` and PYTEST_ADDOPTS included.
        given = [
            *config.getini("addopts"),
            *shlex.split(os.environ.get("PYTEST_ADDOPTS", "")),
            *map(str, config.invocation_params.args),
        ]
        for what in ("save", "compare"):
            _check_name(f"--uprof-{what}", getattr(option, f"uprof_{what}"), given)
        if option.uprof_save == "":
            raise UsageError(
                "--uprof-save takes the name of a baseline", slug="wrong-baseline-name"
            )
        if option.uprof_max_regress is not None:
            parse_fraction(option.uprof_max_regress, "--uprof-max-regress")
        for name, least in (("warmup", 0), ("iterations", 1), ("runs", 1)):
            if (value := getattr(option, f"uprof_{name}")) is not None:
                _count(f"--uprof-{name}", value, least)
        if option.uprof_metric:
            check_metrics(option.uprof_metric)
    except UprofError as err:
        raise pytest.UsageError(f"{err} ({err.hint})" if err.hint else str(err)) from None


def _check_name(option: str, name: str | None, given: Sequence[str]) -> None:
    if not name:
        return
    # `--uprof-save tests/` probably means a test path; after `=` it is always a name.
    has_sep, exists = os.sep in name, Path(name).exists()
    is_path = exists and has_sep if option == "--uprof-save" else exists or has_sep
    if is_path and f"{option}={name}" not in given:
        raise UsageError(
            f"{option} {name!r} looks like a path, expected the name of a baseline",
            hint=f"write {option}=NAME, or put {option} after the test paths",
            slug="wrong-baseline-name",
        )
    if SEPARATOR in name or "@" in name or not name.isprintable():
        raise UsageError(
            f"{option} {name!r}: the name of a test baseline must not contain {SEPARATOR!r} or '@'",
            slug="wrong-baseline-name",
        )


def _count(what: str, value: object, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UsageError(
            f"{what} is {value!r}, expected a number of at least {least}", slug="wrong-option-value"
        )
    return value


Outcome = Literal["measured", "no baseline", "pass", "regression", "inconclusive"]
_TOP = 3  # Number of operations that the message of a regression lists.


class Judged(msgspec.Struct, frozen=True):
    """Verdict on one step of a test."""

    outcome: Outcome
    # Median iteration time.
    new_ns: float | None
    base_ns: float | None = None
    baseline: str | None = None
    reason: str = ""  # Reason of the worst metric.
    message: str = ""  # Message of a failed test.


def judge(test: str, base: Run, new: Run, wanted: Settings) -> Judged:
    """Judge a step by the gate's rule. Raises UsageError if the runs cannot be compared."""
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
    new_ns, base_ns = _median(new), _median(base)
    for check in verdict.checks:
        if check.metric == TOTAL and check.comparison is not None:
            # Without waiting, if it is known.
            new_ns, base_ns = check.comparison.new_median, check.comparison.base_median
            break
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
    from unified_prof.report.verdicts import check_values

    found = diff(base, new, noise=known)
    lines = [f"uprof: {verdict.outcome} of {test} against {base.label}"]
    lines += [
        f"  {check.metric}: {check_values(check)}: {check.reason}"
        for check in verdict.checks
        if check.outcome != "pass"
    ]
    lines += [f"  note: {doubt}" for doubt in comparability_warnings(base, new)]
    if verdict.outcome == "regression":
        text = render_text(difference_document(found, top=_TOP))
        _, _, tables = text.partition("\n\n")
        lines += ["", *tables.rstrip().splitlines()] if tables else []
    return "\n".join(lines)


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


def measure_again(
    item: pytest.Item, controller: Mapping[str, Any] | None, number: int, of: int
) -> dict[str, Run]:
    """Run a test in a separate process, and return the results by step name.

    `controller` has the command line of the session in an xdist worker. Raises CaptureError if the
    test failed there, or measured nothing.
    """
    config = item.config
    asked = config.invocation_params
    arguments = list(controller["arguments"] if controller else map(str, asked.args))
    arguments.append(f"--rootdir={config.rootpath}")
    if config.inipath is not None:
        arguments += ["-c", str(config.inipath)]
    if config.pluginmanager.hasplugin("xdist"):
        arguments += ["-n", "0"]
    if config.pluginmanager.hasplugin("pytest_cov"):
        arguments += ["--no-cov"]
    _, _, within = plain_id(item).partition("::")
    with TemporaryDirectory(prefix="uprof-pytest-run-") as folder:
        (Path(folder) / _TEST).write_bytes(os.fsencode(f"{item.path}::{within}"))
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *arguments, "-o", f"cache_dir={folder}/cache"],
            cwd=Path(controller["directory"]) if controller else asked.dir,
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
        f"run {number} of {of} in a separate process ended with exit code {done.returncode} and "
        f"{'measured nothing' if done.returncode == 0 else 'no measurement'}:\n{printed}",
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


_SUFFIX = ".measured"
_HASH_CHARACTERS = 12  # Length of the hash in baseline names that would be too long for the store.


class Record(msgspec.Struct, frozen=True):
    """Result of one measured step, passed from a worker to the end of the session."""

    test: str
    at_ns: int
    judged: Judged
    # Baseline to save; None if saving was not requested or the test failed.
    baseline: NewBaseline | None


class Session:
    """State shared by the fixtures of one session.

    Each process writes its results to `folder`; `controller` has data from the controller, in an
    xdist worker. If `one_run`, this session measures one test for another session.
    """

    def __init__(
        self,
        config: pytest.Config,
        folder: Path,
        controller: Mapping[str, Any] | None,
        *,
        one_run: bool,
    ) -> None:
        self.is_one_run = one_run
        self._folder = folder
        self._controller = controller
        option = config.option
        self._save: str | None = option.uprof_save
        self._compare: str | None = option.uprof_compare
        store = option.uprof_store
        self._store = str(config.rootpath / api.DEFAULT_STORE) if store is None else store
        self._entries: dict[str, Entry] | None = None
        self._messages: list[str] = []
        self._failed: str | None = None

    def test_id(self, item: pytest.Item, name: str) -> str:
        """Return the name of a step, which is the same in all sessions."""
        test = plain_id(item)
        return f"{test} ({name})" if name else test

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Wait until no other worker on this machine measures (not on Windows)."""
        try:
            import fcntl
        except ImportError:  # Windows
            yield
            return
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (self._folder / "turn").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def completed(self, item: pytest.Item, measured: Mapping[str, tuple[Settings, Run]]) -> None:
        """Measure a passed test again, judge its steps and record the results.

        Raises pytest.fail.Exception if a step is a regression, CaptureError if the test cannot be
        measured again, and StoreError if the baseline cannot be read.
        """
        if self.is_one_run:
            save(self._folder, {name: run for name, (_, run) in measured.items()})
            return
        runs = {name: [run] for name, (_, run) in measured.items()}
        if self._save is not None or self._compare is not None:
            asked = max(wanted.runs for wanted, _ in measured.values())
            with self.turn():
                for number in range(2, asked + 1):
                    more = measure_again(item, self._controller, number, asked)
                    for name, (wanted, _) in measured.items():
                        if number > wanted.runs:
                            continue
                        if name not in more:
                            raise CaptureError(
                                f"the run in a separate process did not measure step {name!r}",
                                hint="a test must measure the same steps every time",
                                slug="run-of-test-failed",
                            )
                        runs[name].append(more[name])
        failures = []
        for name, (wanted, run) in measured.items():
            test = self.test_id(item, name)
            whole = replace(pool(runs[name]), label=test, facts=run.facts)
            judged = self._judged(test, whole, wanted)
            item.user_properties.extend(properties(judged, name))
            fails = judged.outcome == "regression" or (
                judged.outcome == "inconclusive" and wanted.fail_inconclusive
            )
            saved = None
            if self._save is not None and not fails:
                saved = api.to_save(stored_name(self._save, test), whole)
            self._write(Record(test, time.time_ns(), judged, saved))
            if fails:
                failures.append(judged.message)
        if failures:
            pytest.fail("\n\n".join(failures), pytrace=False)

    def end(self, session: pytest.Session) -> None:
        """Save the baselines."""
        if self._save is None:
            return
        records = self._records()
        new = [record.baseline for record in records if record.baseline is not None]
        if session.exitstatus == pytest.ExitCode.INTERRUPTED:
            self._messages.append("not saved: the session was interrupted")
        elif not new:
            self._messages.append("not saved: no passed test has results")
        else:
            try:
                entries = api.save_all(new, self._store)
            except UprofError as err:
                hint = f" ({err.hint})" if err.hint else ""
                self._failed = f"not saved: {err.tagged_message}{hint}"
                if session.exitstatus == pytest.ExitCode.OK:
                    session.exitstatus = pytest.ExitCode.TESTS_FAILED
                return
            left_out = len(records) - len(entries)
            self._messages.append(
                f"saved {len(entries)} of {len(records)} as {self._save} in {self._store}"
                + (": regressions are not saved" if left_out else "")
            )

    def show(self, reporter: Any) -> None:
        """Print the results and what was saved."""
        records = self._records()
        if not (records or self._messages or self._failed):
            return
        reporter.section("uprof")
        if records:
            judged = {record.test: record.judged for record in records}
            for line in table(judged, compared=self._compare is not None):
                reporter.write_line(line)
            if {one.outcome for one in judged.values()} == {"no baseline"}:
                name = f" {self._compare}" if self._compare else ""
                self._messages.append(
                    f"not compared: no baseline{name} of these tests in {self._store}"
                )
        for line in self._messages:
            reporter.write_line(line)
        if self._failed is not None:
            reporter.write_line(self._failed, red=True)

    def _judged(self, test: str, run: Run, wanted: Settings) -> Judged:
        entry = self._entry(test)
        if self._compare is None or entry is None:
            compared = self._compare is not None
            return Judged("no baseline" if compared else "measured", _median(run))
        base = api.load_baseline(f"{entry.name}@{entry.version}", self._store)
        name = entry.name.partition(SEPARATOR)[0]
        return judge(test, base.with_label(f"{name}@{entry.version}"), run, wanted)

    def _entry(self, test: str) -> Entry | None:
        """Return the baseline of a step: the newest of the requested name, or of any name."""
        if self._compare is None:
            return None
        if self._entries is None:
            try:
                self._entries = {entry.name: entry for entry in api.entries(self._store)}
            except StoreError as err:
                if err.slug != "no-store":
                    raise
                self._entries = {}
        if self._compare:
            return self._entries.get(stored_name(self._compare, test))
        names = {entry.name.partition(SEPARATOR)[0] for entry in self._entries.values()}
        found = [self._entries.get(stored_name(name, test)) for name in names]
        known = [entry for entry in found if entry is not None]
        return max(known, key=lambda entry: entry.saved_at, default=None)

    def _write(self, record: Record) -> None:
        """Write a record atomically; other workers write to the same directory."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        name = f"{os.getpid()}-{secrets.token_hex(8)}"
        partial = self._folder / f"{name}.partial"
        partial.write_bytes(msgspec.msgpack.encode(record))
        partial.replace(self._folder / f"{name}{_SUFFIX}")

    def _records(self) -> list[Record]:
        """Return the records of all workers by test; the last one if a test was repeated."""
        found = [
            msgspec.msgpack.decode(path.read_bytes(), type=Record)
            for path in self._folder.glob(f"*{_SUFFIX}")
        ]
        newest = {one.test: one for one in sorted(found, key=lambda one: one.at_ns)}
        return sorted(newest.values(), key=lambda one: one.test)


def stored_name(name: str, test: str) -> str:
    """Return the unique, printable name of a step's baseline in the store."""
    whole = f"{name}{SEPARATOR}{test}"
    plain = "".join(one if one.isprintable() else "?" for one in whole)
    if plain == whole and len(whole) <= MAX_NAME:
        return whole
    mark = hashlib.sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_CHARACTERS]
    return f"{plain[: MAX_NAME - _HASH_CHARACTERS - 1]}~{mark}"
