"""The fixture object `uprof`, which measures the steps of a test and has them judged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np
import pytest
from msgspec.structs import replace

from unified_prof.base.run_spec import MEMORY, RUN_TIME, RunSpec
from unified_prof.base.text import NS_PER_MS
from unified_prof.compare import runs
from unified_prof.compare.comparable import BACKWARD, FORWARD, PEAK, TOTAL, Run, exclude_waiting
from unified_prof.errors import UprofError, UsageError
from unified_prof.integrations.pytest_uprof.verdicts import Settings, settings_of

if TYPE_CHECKING:
    from unified_prof.integrations.pytest_uprof.verdicts import Session


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
    run: Run  # Input for the gate and `unified_prof.diff`.


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

        Raises pytest.fail.Exception if a step is a regression, or cannot be measured again or
        judged.
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

    def median(of: Run, metric: str, unit: float = NS_PER_MS) -> float | None:
        values = of.totals.get(metric, ())
        return float(np.median(values)) / unit if len(values) else None

    peak = median(active, PEAK, 1)
    return Measured(
        median(active, TOTAL),
        median(active, FORWARD),
        median(active, BACKWARD),
        median(run, TOTAL),
        None if peak is None else int(peak),
        len(run.totals.get(TOTAL, ())),
        run,
    )
