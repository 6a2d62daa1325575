"""Functions of the package whose results are compared with the stored ones of the test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

from tests.results import compared, same
from unified_prof.cluster import clocks, summary
from unified_prof.compare import alignment, device_diff, statistics
from unified_prof.compare import diff as diffs
from unified_prof.compare import gate as gates
from unified_prof.compare import history as histories
from unified_prof.explain import api, what_if
from unified_prof.explain.report_questions import Analysis
from unified_prof.pipeline import cluster

summarize_run, summary_of = compared(summary.summarize_run), compared(cluster.summary_of)
align_clocks = compared(clocks.align_clocks)
gate, gate_workloads = compared(gates.gate), compared(gates.gate_workloads)
compare_workloads = compared(gates.compare_workloads)
diff, history = compared(diffs.diff), compared(histories.history)
diff_recordings = compared(device_diff.diff_recordings)
align, compare = compared(alignment.align), compared(statistics.compare)
shifts = compared(statistics.shifts)
gain = compared(what_if.gain)


class Compared:
    """An analysis whose results are compared."""

    def __init__(self, analysis: Analysis) -> None:
        self._analysis = analysis

    @property  # type: ignore[misc]
    def __class__(self) -> type[Analysis]:  # type: ignore[override]
        return type(self._analysis)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._analysis, name)
        return partial(self._call, name) if callable(found) else same(found, {name: found})

    def _call(self, name: str, *arguments: Any, **options: Any) -> Any:
        result = getattr(self._analysis, name)(*arguments, **options)
        if isinstance(result, Iterator):
            result = [*result]
        return same(result, {name: arguments, **options, "result": result})


@contextmanager
def open_analyses(path: Path, **options: Any) -> Iterator[list[Analysis]]:
    """Open reports; their results are compared."""
    with api.open_analyses(path, **options) as analyses:
        yield [cast(Analysis, Compared(analysis)) for analysis in analyses]
