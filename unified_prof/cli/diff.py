"""Command `uprof diff`: compare two runs operation by operation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from unified_prof.cli import output as printing
from unified_prof.cli import report_input
from unified_prof.cli.command import (
    HELP_ALL,
    FullNames,
    MoreBase,
    MoreNew,
    Noise,
    argument,
    command,
    flag,
    formats_of,
    option,
)
from unified_prof.cli.output import ResultOptions, Target
from unified_prof.cli.report_input import Convert, Reader, Side, WorkloadOption, WorkloadPairs
from unified_prof.compare.gate import parse_noise
from unified_prof.errors import UsageError

if TYPE_CHECKING:
    from unified_prof.compare.device_diff import DeviceDifference
    from unified_prof.compare.operation_changes import By
    from unified_prof.report.document import Document


_By = Literal["operation", "line", "module", "class", "shape", "kernel", "annotation"]
# Breakdowns that tracked workloads have; device recordings have all others.
_BY_SAMPLES: Final[tuple[By, ...]] = ("operation", "line", "module", "annotation")
_FORMATS = ("text", "json", "csv", "markdown", "html")
# Formats that only comparisons of device recordings have.
_DEVICE_ONLY = ("csv", "html")


@command(
    "diff",
    epilog="Exit codes: 0 success; 2 usage error (reports that cannot be compared); 6 "
    "recording unreadable; 7 report missing or unreadable. Use `uprof gate` for a verdict.",
)
def diff(
    base: Path | None = argument(
        default=None, metavar="BASE", help="Baseline: a report or run directory."
    ),
    new: Path | None = argument(
        default=None, metavar="NEW", help="Candidate: a report or run directory."
    ),
    more_base: MoreBase = None,
    more_new: MoreNew = None,
    workload: WorkloadOption = None,
    capture: Path | None = option(
        "--with",
        metavar="CAPTURE",
        help="Report in which the CUDA graphs that both runs replay were captured; their "
        "kernels are attributed to the operations recorded there.",
        shown_by=HELP_ALL,
    ),
    base_capture: Path | None = option(
        "--base-with",
        metavar="CAPTURE",
        help="Like --with, for the baseline only.",
        shown_by=HELP_ALL,
    ),
    new_capture: Path | None = option(
        "--new-with",
        metavar="CAPTURE",
        help="Like --with, for the candidate only.",
        shown_by=HELP_ALL,
    ),
    by: _By = option(default="operation", help="Breakdown of the changes."),
    top: int = option(default=20, min=1, help="Number of rows per table."),
    everything: bool = flag("--all", help="Also show unchanged and inconclusive rows."),
    result: ResultOptions = formats_of(
        _FORMATS,
        help="Output format; json and csv have all rows; csv and html need recordings of "
        "device work.",
    ),
    noise: Noise = None,
    convert: Convert = False,
    full_names: FullNames = False,
) -> None:
    """Compare two runs operation by operation.

    Operations of tracked workloads are matched by module path, source line, name and order, so
    inserted and removed operations do not shift the others. Device recordings (msprof databases of
    any vendor) are compared at several levels: step, parts of the step, classes of kernels,
    operations by name and shape, kernels. For several recordings per side, such as a directory of
    ranks, figures are the mean over devices.
    """
    from unified_prof.report.formats import DEVICE_SUFFIXES, find_format

    target = result.target(DEVICE_SUFFIXES)
    target.refuse_terminal(for_terminal=find_format(target.shape).for_terminal)
    captures = base_capture or capture, new_capture or capture
    how = _Shown(target, by, top, everything, full_names, noise, captures)
    if capture is not None and (base_capture or new_capture):
        raise UsageError(
            "--with applies to both runs",
            hint="use --base-with and --new-with for one of them",
            slug="contradicting-options",
        )
    is_text = target.shape == printing.TEXT
    reading = Reader(convert, result.quiet or not is_text, target.file)
    warnings: Sequence[str]
    if workload:
        if target.shape in _DEVICE_ONLY:
            raise UsageError(
                f"--format {target.shape} supports one comparison, not several workloads",
                hint="use text, json or markdown, or compare each workload separately",
                slug="contradicting-options",
            )
        if capture or base_capture or new_capture:
            raise UsageError(
                "--with supports one comparison, not several workloads",
                hint="compare each workload separately",
                slug="contradicting-options",
            )
        if base or new or more_base or more_new:
            raise UsageError(
                "--workload cannot be combined with BASE, NEW, --base and --new",
                hint="use --workload NAME=BASE:NEW for each workload",
                slug="contradicting-options",
            )
        text, warnings = _compare_each(report_input.parse_workloads(workload), reading, how)
    elif base is None or new is None:
        raise UsageError(
            "diff needs two reports, BASE and NEW", hint="uprof diff base new", slug="wrong-inputs"
        )
    else:
        sides = [base, *(more_base or [])], [new, *(more_new or [])]
        found = _compared(*sides, reading, how)
        text = how.render(found.fields, found.document) if found.text is None else found.text
        warnings = found.warnings
    target.deliver(text)
    if not is_text and not result.quiet:
        for warning in warnings:
            printing.print_message(f"uprof: warning: {warning}")


@dataclass(frozen=True, slots=True)
class _Shown:
    """Presentation of a comparison."""

    target: Target
    by: _By
    top: int
    everything: bool
    full_names: bool
    noise: str | None
    # Reports in which the replayed graphs of each side were captured.
    captures: tuple[Path | None, Path | None]

    def render(self, fields: Callable[[], dict[str, Any]], document: Document) -> str:
        return self.target.render_document(
            lambda: printing.json_text(fields()), lambda: document, full_names=self.full_names
        )


@dataclass(frozen=True, slots=True)
class _Comparison:
    """A comparison and its output: data for JSON, a document, or text in another format."""

    fields: Callable[[], dict[str, Any]]
    document: Document
    warnings: Sequence[str]
    # Text in a format that documents do not support, such as CSV; None otherwise.
    text: str | None = None


def _compare_each(given: WorkloadPairs, reading: Reader, how: _Shown) -> tuple[str, Sequence[str]]:
    """Compare several workloads: overall change, then each workload."""
    from unified_prof.compare.comparable import PEAK, TIMES
    from unified_prof.compare.gate import compare_workloads
    from unified_prof.report import operation_difference

    found = {name: _compared(*sides, reading, how) for name, sides in given.items()}
    pairs = report_input.load_workloads(given, reading)
    noises = report_input.noises_of(how.noise, pairs)
    together = {
        metric: mean
        for metric in (*TIMES, PEAK)
        if (mean := compare_workloads(pairs, metric, noises)) is not None
    }
    warnings = [f"{name}: {one}" for name, each in found.items() for one in each.warnings]
    document = operation_difference.differences_document(
        {name: one.document for name, one in found.items()}, together
    )
    text = how.render(
        lambda: operation_difference.differences_fields(
            {name: one.fields() for name, one in found.items()}, together
        ),
        document,
    )
    return text, warnings


def _compared(
    base: Sequence[Path], new: Sequence[Path], reading: Reader, how: _Shown
) -> _Comparison:
    """Compare two sides of any kind."""
    from unified_prof.compare import device_diff

    before, after = reading.side(base), reading.side(new)
    with printing.with_convert_hint(*before.given, *after.given):
        first, second = (one and reading.reports(one, several=False).path for one in how.captures)
        diff_recordings = device_diff.diff_recordings(
            before.reports,
            after.reports,
            (before.label, after.label),
            None if how.noise is None else parse_noise(how.noise),
            (first, second),
        )
    if diff_recordings is not None:
        return _devices(diff_recordings, how)
    if any(how.captures):
        raise device_diff.without_replays()
    return _samples(before, after, how)


def _devices(found: DeviceDifference, how: _Shown) -> _Comparison:
    """Compare device recordings."""
    if how.by == "annotation":
        raise UsageError(
            "--by annotation needs tracked workloads; these reports are device recordings",
            hint="use --by operation, line, module, class, shape or kernel; or uprof report "
            "--by annotation for one recording",
            slug="no-breakdown",
        )
    from unified_prof.report import device_documents
    from unified_prof.report.formats import DeviceRequest

    shown = DeviceRequest(how.by, how.top, how.everything)
    text = None
    if how.target.shape == "csv":
        text = device_documents.device_csv(found)
    elif how.target.shape == "html":
        text = device_documents.device_page(found, shown)
    return _Comparison(
        lambda: device_documents.device_fields(found),
        device_documents.device_document(found, shown),
        found.warnings,
        text,
    )


def _samples(before: Side, after: Side, how: _Shown) -> _Comparison:
    """Compare tracked workloads."""
    from unified_prof.compare import diff as analysis
    from unified_prof.report import operation_difference

    if how.target.shape in _DEVICE_ONLY:
        raise UsageError(
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
        if not len(run.operations) and not run.sizes and not run.totals:
            raise UsageError(f"{run.label} is empty: nothing to compare", slug="empty-report")
    found = analysis.diff(*runs, by=by, noise=report_input.noise_of(how.noise, runs[1]))
    document = operation_difference.difference_document(
        found, top=how.top, everything=how.everything
    )
    return _Comparison(
        lambda: operation_difference.difference_fields(found), document, found.warnings
    )
