"""`uprof run --batch-sizes`: one run per batch size, and a model of throughput and memory."""

from __future__ import annotations

import gc
import json
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unified_prof.base import streams
from unified_prof.base.text import printable
from unified_prof.compare.gate import parse_absolute_limits
from unified_prof.errors import UprofError, UsageError

if TYPE_CHECKING:
    from unified_prof.base.run_spec import RunSpec
    from unified_prof.explain.api import Fit, Measured


@dataclass(frozen=True, slots=True)
class BatchSizes:
    """Batch sizes to run, in ascending order, and the memory limit."""

    specs: tuple[RunSpec, ...]
    memory_bytes: int | None

    @classmethod
    def parse(cls, sizes: str | None, memory: str | None, spec: RunSpec) -> BatchSizes:
        """Parse `8,16,32` and `24GiB`.

        Raises:
            UsageError: A value is not valid, or a memory limit is given without sizes.
        """
        if sizes is None:
            raise UsageError(
                "--memory requires --batch-sizes",
                hint="add --batch-sizes, for example 8,16,32",
                slug="option-without-effect",
            )
        if spec.batch_size is not None:
            raise UsageError(
                "--batch-size and --batch-sizes cannot be combined", slug="contradicting-options"
            )
        if re.fullmatch(r"\s*[1-9]\d*\s*(?:,\s*[1-9]\d*\s*)*", sizes) is None:
            raise UsageError(
                f"--batch-sizes {sizes!r}: expected sizes above 0",
                hint="for example 8,16,32",
                slug="wrong-option-value",
            )
        numbers = sorted({int(one) for one in sizes.split(",")})
        fits: float | None = None
        if memory is not None:
            try:
                _, fits = parse_absolute_limits([memory])
            except UsageError:
                fits = None
            if fits is None:
                raise UsageError(
                    f"--memory {memory!r}: expected a size such as 24GiB",
                    slug="wrong-option-value",
                )
        return cls(
            tuple(
                replace(spec, batch_size=one, output_dir=spec.output_dir / f"batch-{one}")
                for one in numbers
            ),
            None if fits is None else int(fits),
        )


def run(wanted: BatchSizes, run_one: Callable[[RunSpec], int], *, as_json: bool) -> int:
    """Run each size, print the result, and return the first exit code other than 0.

    If a size fails, for example for lack of memory, larger sizes are not tried.
    """
    from unified_prof.explain.api import fit

    measured, exit_code = _series(wanted, run_one)
    line = fit(measured, wanted.memory_bytes)
    if as_json:
        streams.hand_over(json.dumps(document(measured, line)))
    else:
        for text in table(measured, line):
            streams.tell(text)
    return exit_code


def _series(wanted: BatchSizes, run_one: Callable[[RunSpec], int]) -> tuple[list[Measured], int]:
    """Return the measurement of each size, and the exit code of the last run."""
    from unified_prof.explain.api import Measured

    measured: list[Measured] = []
    for spec in wanted.specs:
        assert spec.batch_size is not None
        try:
            exit_code = run_one(spec)
        except UprofError as err:
            if not measured:
                raise
            measured.append(Measured(spec.batch_size, None, None, printable(str(err))))
            return measured, err.exit_code
        if exit_code:
            why = f"the workload exited with code {exit_code}"
            measured.append(Measured(spec.batch_size, None, None, why))
            return measured, exit_code
        measured.append(_measure_size(spec))
        gc.collect()  # free the model of one size before the next size runs
    return measured, 0


def _measure_size(spec: RunSpec) -> Measured:
    from unified_prof.explain.api import Measured
    from unified_prof.pipeline.run_summary import summarize

    files = [path for path in sorted(Path(spec.output_dir).glob("*.sqlite")) if path.is_file()]
    found = summarize(files)
    assert spec.batch_size is not None
    if found is None:
        return Measured(
            spec.batch_size, None, None, ("neither a run time nor a memory report was requested")
        )
    return Measured(spec.batch_size, found.iteration_ms, found.peak_usage_bytes)


def document(measured: list[Measured], line: Fit | None) -> dict[str, Any]:
    """Return the result as plain data."""
    return {
        "format": "uprof-batch-sizes",
        "version": 1,
        "batch_sizes": [asdict(one) | {"samples_per_s": one.samples_per_s} for one in measured],
        "prediction": None if line is None else asdict(line),
    }


def table(measured: list[Measured], line: Fit | None) -> list[str]:
    """Return the result as lines of text."""
    from unified_prof.report import names

    rows = [("batch", "iteration", "samples/s", "peak memory")]
    for one in measured:
        time = names.format_duration(None if one.iteration_ms is None else one.iteration_ms * 1e6)
        rate = "-" if one.samples_per_s is None else f"{one.samples_per_s:,.1f}"
        rows.append((str(one.batch_size), time, rate, names.format_size(one.peak_bytes)))
    widths = [max(len(row[at]) for row in rows) for at in range(4)]
    lines = ["  ".join(f"{cell:>{widths[at]}}" for at, cell in enumerate(row)) for row in rows]
    lines += [f"batch {one.batch_size}: {one.failure}" for one in measured if one.failure]
    if line is None:
        return lines
    error = "" if line.error_bytes is None else f" ± {names.format_size(line.error_bytes)}"
    fixed = names.format_size(max(line.fixed_bytes, 0.0))
    lines.append(f"peak: {fixed} + {names.format_size(line.bytes_per_sample)} per sample{error}")
    if line.memory_bytes is not None:
        fits = "none" if line.largest_batch is None else f"{line.largest_batch:,}"
        lines.append(f"largest batch in {names.format_size(line.memory_bytes)}: {fits} (predicted)")
    return lines
