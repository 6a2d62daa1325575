"""Settings of measured tests, and the fixture object `uprof`.

Arguments of a call take precedence over the marker, and the marker over options.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from unified_prof.base.run_spec import ITERATIONS, MEMORY, RUN_TIME, WARMUP, RunSpec
from unified_prof.base.text import NS_PER_MS
from unified_prof.compare import runs
from unified_prof.compare.comparable import BACKWARD, FORWARD, PEAK, TOTAL, Run, exclude_waiting
from unified_prof.compare.gate import parse_fraction
from unified_prof.errors import UprofError, UsageError

if TYPE_CHECKING:
    from unified_prof.integrations.pytest_uprof.verdicts import Session


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

    Arguments of the call (`given`) are None if not given.

    Raises:
        UsageError: A value is not valid.
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

    Raises:
        pytest.UsageError: An option is not valid.
    """
    option = config.option
    try:
        given = _given(config)
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
            from unified_prof.compare.gate import check_metrics

            check_metrics(option.uprof_metric)
    except UprofError as err:
        raise pytest.UsageError(f"{err} ({err.hint})" if err.hint else str(err)) from None


def _given(config: pytest.Config) -> list[str]:
    """Return the arguments of the command line, `addopts` and PYTEST_ADDOPTS included."""
    before = [*config.getini("addopts"), *shlex.split(os.environ.get("PYTEST_ADDOPTS", ""))]
    return [*before, *map(str, config.invocation_params.args)]


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


# Extra iterations: one at the start, and those that measure activations and peak memory.
_SPARE = 16


@dataclass(frozen=True, slots=True)
class Measured:
    """Medians of the measured iterations of a step.

    Times exclude waiting for a processor if it is known, as in verdicts; `wall_ms` includes it.
    """

    iteration_ms: float | None
    forward_ms: float | None
    backward_ms: float | None
    wall_ms: float | None
    peak_bytes: int | None
    iterations: int
    # Input for the gate and `unified_prof.diff`.
    run: Run


class Uprof:
    """Fixture object: measures steps of one test."""

    def __init__(self, item: pytest.Item, session: Session) -> None:
        self._item, self._session = item, session
        self._measured: dict[str, tuple[Settings, Run]] = {}

    def run(
        self,
        step: Callable[[], object],
        *,
        name: str = "",
        warmup: int | None = None,
        iterations: int | None = None,
        runs: int | None = None,
        max_regress: str | float | None = None,
        device: str | None = None,
    ) -> Measured:
        """Measure a step like `uprof run` measures an iteration.

        Args:
            step: Function to measure; called several times without arguments.
            name: Name of the step, required if a test measures several.
            warmup: Calls before measuring.
            iterations: Calls to measure.
            runs: Runs of a saved or compared test; the first one in this process, the others in
                new processes.
            max_regress: Largest accepted regression: "5%" or 0.05.
            device: Torch device type; by default the accelerator, or the CPU.

        Raises:
            UsageError: A value is not valid, or two steps of a test have the same name.
            CaptureError: No operation was measured.
            DeviceUnavailableError: torch or the device is missing.
        """
        __tracebackhide__ = True
        if not callable(step):
            raise UsageError(
                f"uprof.run expects a function that runs one step, not {type(step).__name__}",
                hint="for example uprof.run(lambda: model(x).sum().backward())",
                slug="no-step",
            )
        if name in self._measured:
            raise UsageError(
                f"this test has already measured a step {name!r}"
                if name
                else "this test has already measured a step",
                hint="give it a name: uprof.run(step, name='backward')",
                slug="step-measured-twice",
            )
        given = {
            "warmup": warmup,
            "iterations": iterations,
            "runs": runs,
            "max_regress": max_regress,
        }
        wanted = settings_of(self._item, given)
        try:
            with self._session.turn():
                run = self._measure(step, wanted, device)
        except UprofError as err:
            # pytest shows the message only: the hint has to be part of it.
            message = f"{err} ({err.hint})" if err.hint else str(err)
            raise type(err)(message, slug=err.slug).with_traceback(None) from None
        facts = {**run.facts, "workload": self._session.test_id(self._item, name)}
        run = replace(run, facts=facts)
        self._measured[name] = wanted, run
        return _summary(run)

    def complete(self) -> None:
        """Measure again if requested, judge, and record the result.

        Raises:
            pytest.fail.Exception: A step is a regression, or cannot be measured again or judged.
        """
        if not self._measured:
            return
        try:
            self._session.completed(self._item, self._measured)
        except UprofError as err:
            pytest.fail(
                f"uprof: {err}" + (f"\nhint: {err.hint}" if err.hint else ""), pytrace=False
            )

    def _measure(self, step: Callable[[], object], wanted: Settings, device: str | None) -> Run:
        from unified_prof.pipeline.live import measuring
        from unified_prof.tracking.live import step as mark

        with TemporaryDirectory(prefix="uprof-test-") as folder:
            spec = RunSpec(
                target=self._item.nodeid,
                reports=(RUN_TIME, MEMORY),
                output_dir=Path(folder) / "run",
                project_root=self._item.config.rootpath,
                warmup=wanted.warmup,
                iterations=wanted.iterations,
            )
            with measuring(spec, device) as profile:
                for _ in range(_SPARE + wanted.warmup + 2 * wanted.iterations):
                    step()
                    mark()
                    if profile.is_finished:
                        break
            return runs.load([profile.directory])


def _summary(run: Run) -> Measured:
    active, _, _ = exclude_waiting(run, run)
    medians = {
        metric: float(np.median(values)) for metric, values in active.totals.items() if len(values)
    }
    wall = run.totals.get(TOTAL, ())

    def milliseconds(metric: str) -> float | None:
        return medians[metric] / NS_PER_MS if metric in medians else None

    peak = medians.get(PEAK)
    return Measured(
        milliseconds(TOTAL),
        milliseconds(FORWARD),
        milliseconds(BACKWARD),
        float(np.median(wall)) / NS_PER_MS if len(wall) else None,
        None if peak is None else int(peak),
        len(run.totals.get(TOTAL, ())),
        run,
    )
