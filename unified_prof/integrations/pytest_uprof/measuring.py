"""The fixture's object: measures a step, and lets a test's measurements be completed and judged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np
import pytest

from unified_prof.analysis.compare import runs
from unified_prof.analysis.compare.comparable import BACKWARD, FORWARD, PEAK, TOTAL, Run
from unified_prof.errors import UprofError, UsageError
from unified_prof.integrations.pytest_uprof import settings
from unified_prof.integrations.pytest_uprof.settings import Settings
from unified_prof.runs.spec import MEMORY, RUN_TIME, RunSpec
from unified_prof.units import NS_PER_MS

if TYPE_CHECKING:
    from unified_prof.integrations.pytest_uprof.session import Session

_SPARE = 16
"""Iterations beyond those that are asked for: for the first one, for activations and for peaks."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What one step takes, by the medians of the iterations that were measured."""

    iteration_ms: float | None
    forward_ms: float | None
    backward_ms: float | None
    peak_bytes: int | None
    iterations: int
    run: Run
    """All of it, as `unified_prof.diff` and the gate take it."""


class Uprof:
    """What a test gets as `uprof`."""

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
        """Measure a step as `uprof run` measures an iteration.

        Args:
            step: What is measured; it is called without arguments, several times.
            name: What to call it, where a test measures several steps.
            warmup: Calls before measuring.
            iterations: Calls to measure.
            runs: Times that the test is measured to be saved or compared, each but the first in a
                process of its own.
            max_regress: How much worse than a baseline is too much: "5%" or 0.05.
            device: A torch device type; by default the accelerator, or the CPU.

        Raises:
            UsageError: a value makes no sense; a test measures two steps of one name.
            CaptureError: there was nothing to measure.
            DeviceUnavailableError: torch or the device is not here.
        """
        __tracebackhide__ = True
        if not callable(step):
            raise UsageError(
                f"uprof.run takes a function that runs one step, not {type(step).__name__}",
                hint="for example uprof.run(lambda: model(x).sum().backward())",
                slug="no-step",
            )
        if name in self._measured:
            raise UsageError(
                f"this test has measured a step {name!r} already"
                if name
                else "this test has measured a step already",
                hint="tell them apart: uprof.run(step, name='backward')",
                slug="step-measured-twice",
            )
        given = {
            "warmup": warmup,
            "iterations": iterations,
            "runs": runs,
            "max_regress": max_regress,
        }
        wanted = settings.of(self._item, given)
        with self._session.turn():
            run = self._measure(step, wanted, device)
        facts = {**run.facts, "workload": self._session.test_id(self._item, name)}
        run = replace(run, facts=facts)
        self._measured[name] = wanted, run
        return _summary(run)

    def complete(self) -> None:
        """Measure again where that is asked for, judge, and keep it for the session's end.

        Raises:
            pytest.fail.Exception: it is a regression, or cannot be measured again or judged.
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
    medians = {
        metric: float(np.median(values)) for metric, values in run.totals.items() if len(values)
    }

    def milliseconds(metric: str) -> float | None:
        return medians[metric] / NS_PER_MS if metric in medians else None

    peak = medians.get(PEAK)
    return Measured(
        milliseconds(TOTAL),
        milliseconds(FORWARD),
        milliseconds(BACKWARD),
        None if peak is None else int(peak),
        len(run.totals.get(TOTAL, ())),
        run,
    )
