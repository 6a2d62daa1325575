"""`uprof run --batch-sizes`: one run for each size of batch, and what they say together."""

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
from unified_prof.compare.gate import absolute
from unified_prof.errors import UprofError, UsageError

if TYPE_CHECKING:
    from unified_prof.base.run_spec import RunSpec
    from unified_prof.explain.api import Fit, Measured


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be run: a specification for each size, in rising order."""

    specs: tuple[RunSpec, ...]
    memory_bytes: int | None

    @classmethod
    def of(cls, sizes: str | None, memory: str | None, spec: RunSpec) -> Wanted:
        """Return what `8,16,32` and `24GiB` mean for a run.

        Raises:
            UsageError: they are no sizes, or there is memory without sizes.
        """
        if sizes is None:
            raise UsageError(
                "--memory is for --batch-sizes",
                hint="name the sizes of batches",
                slug="option-without-effect",
            )
        if spec.batch_size is not None:
            raise UsageError(
                "--batch-size and --batch-sizes exclude each other", slug="contradicting-options"
            )
        if re.fullmatch(r"\s*[1-9]\d*\s*(?:,\s*[1-9]\d*\s*)*", sizes) is None:
            raise UsageError(
                f"--batch-sizes takes sizes above 0, not {sizes!r}",
                hint="for example 8,16,32",
                slug="wrong-option-value",
            )
        numbers = sorted({int(one) for one in sizes.split(",")})
        fits: float | None = None
        if memory is not None:
            try:
                _, fits = absolute([memory])
            except UsageError:
                fits = None
            if fits is None:
                raise UsageError(
                    f"--memory takes a size such as 24GiB, not {memory!r}",
                    slug="wrong-option-value",
                )
        return cls(
            tuple(
                replace(spec, batch_size=one, output_dir=spec.output_dir / f"batch-{one}")
                for one in numbers
            ),
            None if fits is None else int(fits),
        )


def run(wanted: Wanted, run_one: Callable[[RunSpec], int], *, as_json: bool) -> int:
    """Run each size and tell what they say together; return the first exit code that is not 0.

    A size that fails (for want of memory, say) is told of, and the larger ones are not tried.
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


def _series(wanted: Wanted, run_one: Callable[[RunSpec], int]) -> tuple[list[Measured], int]:
    """Return what was measured of each size, and the exit code of the last that was run."""
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
            why = f"the workload ended with exit code {exit_code}"
            measured.append(Measured(spec.batch_size, None, None, why))
            return measured, exit_code
        measured.append(_measured(spec))
        gc.collect()  # the model of one size is not to stand in the memory of the next
    return measured, 0


def _measured(spec: RunSpec) -> Measured:
    from unified_prof.explain.api import Measured
    from unified_prof.pipeline.run import summarize

    files = [path for path in sorted(Path(spec.output_dir).glob("*.sqlite")) if path.is_file()]
    found = summarize(files)
    assert spec.batch_size is not None
    if found is None:
        return Measured(spec.batch_size, None, None, "no run time or memory report was asked for")
    return Measured(spec.batch_size, found.iteration_ms, found.peak_usage_bytes)


def document(measured: list[Measured], line: Fit | None) -> dict[str, Any]:
    """Return it as plain data."""
    return {
        "format": "uprof-batch-sizes",
        "version": 1,
        "batch_sizes": [asdict(one) | {"samples_per_s": one.samples_per_s} for one in measured],
        "prediction": None if line is None else asdict(line),
    }


def table(measured: list[Measured], line: Fit | None) -> list[str]:
    """Return it as lines for people."""
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
    error = "" if line.error_bytes is None else f", within {names.format_size(line.error_bytes)}"
    fixed = names.format_size(max(line.fixed_bytes, 0.0))
    lines.append(f"peak: {fixed} and {names.format_size(line.bytes_per_sample)} a sample{error}")
    if line.memory_bytes is not None:
        fits = "no batch" if line.largest_batch is None else f"a batch of {line.largest_batch:,}"
        lines.append(
            f"largest that fits in {names.format_size(line.memory_bytes)}: {fits} (predicted)"
        )
    return lines
