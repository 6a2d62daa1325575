"""Command `uprof diff`: compare two runs operation by operation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from unified_prof.baselines.noise import noise_of
from unified_prof.cli import command as cli
from unified_prof.cli.gate_options import WorkloadOption
from unified_prof.cli.output import Printer, ResultOptions, Target
from unified_prof.compare import diff as analysis
from unified_prof.compare.comparable import PEAK, TIMES
from unified_prof.compare.gate import compare_workloads, parse_noise
from unified_prof.errors import UsageError
from unified_prof.pipeline.report_input import (
    Reader,
    Side,
    WorkloadPairs,
    parse_workloads,
    with_report_hint,
)

if TYPE_CHECKING:
    from unified_prof.compare.operation_changes import By
    from unified_prof.report.document import Document


_By = Literal["operation", "line", "module", "class", "shape", "kernel", "annotation"]
# Breakdowns that tracked workloads have; device recordings have all others.
_BY_SAMPLES: Final[tuple[By, ...]] = ("operation", "line", "module", "annotation")
_DEVICE_ONLY = ("csv", "html")  # Formats that only comparisons of device recordings have.


@cli.command(
    "diff",
    epilog="Exit codes: 0 success; 2 usage error (reports that cannot be compared); 6 "
    "recording unreadable; 7 report missing or unreadable. Use `uprof gate` for a verdict.",
)
def diff(
    base: Path | None = cli.argument("Baseline: a report or run directory.", "BASE", default=None),
    new: Path | None = cli.argument("Candidate: a report or run directory.", "NEW", default=None),
    more_base: cli.MoreBase = None,
    more_new: cli.MoreNew = None,
    workload: WorkloadOption = None,
    capture: Path | None = cli.rare_option(
        "Report in which the CUDA graphs that both runs replay were captured; their kernels are "
        "attributed to the operations recorded there.",
        "--with CAPTURE",
    ),
    base_capture: Path | None = cli.rare_option(
        "Like --with, for the baseline only.", "--base-with CAPTURE"
    ),
    new_capture: Path | None = cli.rare_option(
        "Like --with, for the candidate only.", "--new-with CAPTURE"
    ),
    by: _By = cli.option("Breakdown of the changes.", default="operation"),
    top: int = cli.option("Number of rows per table.", default=20, min=1),
    everything: bool = cli.flag("Also show unchanged and inconclusive rows.", "--all"),
    result: ResultOptions = cli.formats_of(
        "text",
        "json",
        "csv",
        "markdown",
        "html",
        help="Output format; json and csv have all rows; csv and html need recordings of device "
        "work.",
    ),
    noise: cli.Noise = None,
    convert: cli.Convert = False,
    full_names: cli.FullNames = False,
) -> None:
    """Compare two runs operation by operation.

    Operations of tracked workloads are matched by module path, source line, name and order, so
    inserted and removed operations do not shift the others. Device recordings (msprof databases of
    any vendor) are compared at several levels: step, parts of the step, classes of kernels,
    operations by name and shape, kernels. For several recordings per side, such as a directory of
    ranks, figures are the mean over devices.
    """
    target = result.target()
    captures = base_capture or capture, new_capture or capture
    cli.refuse(
        capture is not None and (base_capture or new_capture),
        "--with applies to both runs",
        hint="use --base-with and --new-with for one of them",
    )
    printer = Printer(result.quiet or not target.is_text)
    how = _Shown(
        target, Reader(printer, convert, target.file), by, top, everything, noise, captures
    )
    if workload:
        cli.refuse(
            target.shape in _DEVICE_ONLY,
            f"--format {target.shape} supports one comparison, not several workloads",
            hint="use text, json or markdown, or compare each workload separately",
        )
        cli.refuse(
            any(captures),
            "--with supports one comparison, not several workloads",
            hint="compare each workload separately",
        )
        cli.refuse(
            base or new or more_base or more_new,
            "--workload cannot be combined with BASE, NEW, --base and --new",
            hint="use --workload NAME=BASE:NEW for each workload",
        )
        found = _compare_each(parse_workloads(workload), how)
    elif base is None or new is None:
        raise UsageError(
            "diff needs two reports, BASE and NEW", hint="uprof diff base new", slug="wrong-inputs"
        )
    else:
        found = _compare([base, *(more_base or [])], [new, *(more_new or [])], how)
    text = found.text or target.render(found.fields, found.document, full_names=full_names)
    target.deliver(text)
    for warning in () if target.is_text else found.warnings:
        result.printer.warning(warning)


@dataclass(frozen=True, slots=True)
class _Shown:
    """Selection and presentation of a comparison."""

    target: Target
    reader: Reader
    by: _By
    top: int
    everything: bool
    noise: str | None
    # Reports in which the replayed graphs of each side were captured.
    captures: tuple[Path | None, Path | None]


@dataclass(frozen=True, slots=True)
class _Comparison:
    """A comparison and its output: data for JSON, a document, or text in another format."""

    fields: Callable[[], dict[str, Any]]
    document: Callable[[], Document]
    warnings: Sequence[str]
    # Text in a format that documents do not support, such as CSV; None otherwise.
    text: str | None = None


def _compare_each(given: WorkloadPairs, how: _Shown) -> _Comparison:
    """Compare several workloads: overall change, then each workload."""
    from unified_prof.report import operation_difference

    found = {name: _compare(*sides, how) for name, sides in given.items()}
    pairs = {
        name: (how.reader.run(base), how.reader.run(new)) for name, (base, new) in given.items()
    }
    noises = {name: noise_of(how.noise, new) for name, (_, new) in pairs.items()}
    means = {metric: compare_workloads(pairs, metric, noises) for metric in (*TIMES, PEAK)}
    together = {metric: mean for metric, mean in means.items() if mean is not None}
    return _Comparison(
        lambda: operation_difference.differences_fields(
            {name: one.fields() for name, one in found.items()}, together
        ),
        lambda: operation_difference.differences_document(
            {name: one.document() for name, one in found.items()}, together
        ),
        [f"{name}: {one}" for name, each in found.items() for one in each.warnings],
    )


def _compare(base: Sequence[Path], new: Sequence[Path], how: _Shown) -> _Comparison:
    from unified_prof.compare import device_diff
    from unified_prof.report import device_documents
    from unified_prof.report.formats import DeviceRequest

    reader = how.reader
    before, after = reader.side(base), reader.side(new)
    with with_report_hint(*before.given, *after.given):
        first, second = (one and reader.reports(one, several=False).path for one in how.captures)
        found = device_diff.diff_recordings(
            before.reports,
            after.reports,
            (before.label, after.label),
            None if how.noise is None else parse_noise(how.noise),
            (first, second),
        )
    if found is None:
        if any(how.captures):
            raise device_diff.without_replays()
        return _compare_samples(before, after, how)
    if how.by == "annotation":
        raise UsageError(
            "--by annotation needs tracked workloads; these reports are device recordings",
            hint="use --by operation, line, module, class, shape or kernel; or uprof report "
            "--by annotation for one recording",
            slug="no-breakdown",
        )
    shown, text = DeviceRequest(how.by, how.top, how.everything), None
    if how.target.shape == "csv":
        text = device_documents.device_csv(found)
    elif how.target.shape == "html":
        text = device_documents.device_page(found, shown)
    return _Comparison(
        lambda: device_documents.device_fields(found),
        lambda: device_documents.device_document(found, shown),
        found.warnings,
        text,
    )


def _compare_samples(before: Side, after: Side, how: _Shown) -> _Comparison:
    from unified_prof.report import operation_difference

    cli.refuse(
        how.target.shape in _DEVICE_ONLY,
        f"--format {how.target.shape} needs two recordings of device work: these reports are "
        "of tracked workloads, or of the host only",
        hint="use --format text, json or markdown",
        slug="unknown-format",
    )
    by = next((one for one in _BY_SAMPLES if one == how.by), None)
    if by is None:
        raise UsageError(
            f"--by {how.by} needs recordings of device work",
            hint="use --by operation, line, module or annotation",
            slug="no-breakdown",
        )
    runs = before.run(), after.run()
    for run in runs:
        is_empty = not len(run.operations) and not run.sizes and not run.totals
        cli.refuse(is_empty, f"{run.label} is empty: nothing to compare", slug="empty-report")
    found = analysis.diff(*runs, by=by, noise=noise_of(how.noise, runs[1]))
    return _Comparison(
        lambda: operation_difference.difference_fields(found),
        lambda: operation_difference.difference_document(
            found, top=how.top, everything=how.everything
        ),
        found.warnings,
    )
