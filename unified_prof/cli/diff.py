"""`uprof diff`: what changed from one run to another, and how much it explains."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from unified_prof.cli import convert as converting
from unified_prof.cli import output as hints
from unified_prof.cli import output as printing
from unified_prof.cli import output as shapes
from unified_prof.cli import workloads
from unified_prof.cli import workloads as thresholds
from unified_prof.cli.command import AsJsonFormat, Force, FullNames, Noise, Quiet
from unified_prof.cli.convert import Convert, Side
from unified_prof.cli.workloads import WorkloadOption
from unified_prof.compare.gate import told_noise
from unified_prof.errors import UsageError

if TYPE_CHECKING:
    from unified_prof.compare.device_diff import DeviceDifference
    from unified_prof.compare.operation_changes import By


class ByOption(str, Enum):
    """What operations are summed up by."""

    OPERATION = "operation"
    LINE = "line"
    MODULE = "module"
    CLASS = "class"
    SHAPE = "shape"
    KERNEL = "kernel"
    ANNOTATION = "annotation"


_BY_SAMPLES: Final[Mapping[ByOption, By]] = {
    ByOption.OPERATION: "operation",
    ByOption.LINE: "line",
    ByOption.MODULE: "module",
    ByOption.ANNOTATION: "annotation",
}
"""What tracked workloads can be summed up by; recordings of devices by all others."""


class FormatOption(str, Enum):
    """How a comparison is printed."""

    TEXT = "text"
    JSON = "json"
    CSV = "csv"
    MARKDOWN = "markdown"
    HTML = "html"


_OF_DEVICES = (FormatOption.CSV, FormatOption.HTML)
"""Formats that only comparisons of recordings of device work have."""


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command(
        "diff",
        epilog="Exit code: 0 fine, 2 wrong use (reports that cannot be compared), 6 a recording is "
        "unreadable, 7 no report or one that cannot be read. Whether a change may pass is what "
        "`uprof gate` says.",
    )(diff)


def diff(
    context: typer.Context,
    base: Annotated[
        Path | None, typer.Argument(metavar="BASE", help="A report, or a run's folder: before.")
    ] = None,
    new: Annotated[Path | None, typer.Argument(metavar="NEW", help="The same: after.")] = None,
    more_base: Annotated[
        list[Path] | None,
        typer.Option("--base", metavar="FILE", help="Another report of the base run, for samples."),
    ] = None,
    more_new: Annotated[
        list[Path] | None,
        typer.Option("--new", metavar="FILE", help="Another report of the new run, for samples."),
    ] = None,
    workload: WorkloadOption = None,
    capture: Annotated[
        Path | None,
        typer.Option(
            "--with",
            metavar="CAPTURE",
            help="The report in which CUDA graphs were captured that both runs replay: their "
            "kernels count for the operations recorded there.",
        ),
    ] = None,
    base_capture: Annotated[
        Path | None,
        typer.Option("--base-with", metavar="CAPTURE", help="The same, of the base run alone."),
    ] = None,
    new_capture: Annotated[
        Path | None,
        typer.Option("--new-with", metavar="CAPTURE", help="The same, of the new run alone."),
    ] = None,
    by: Annotated[ByOption, typer.Option(help="Sum the changes up by this.")] = ByOption.OPERATION,
    top: Annotated[int, typer.Option(min=1, help="Rows of each table.")] = 20,
    everything: Annotated[
        bool, typer.Option("--all", help="Also what surely did not change, or may not have.")
    ] = False,
    format_: Annotated[
        FormatOption | None,
        typer.Option(
            "--format",
            help="How to print it; json and csv have every row; csv and html are of recordings "
            "of devices.",
            show_default="by -o's ending, or text",
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write to a file.")
    ] = None,
    noise: Noise = None,
    convert: Convert = False,
    force: Force = False,
    json_: AsJsonFormat = False,
    full_names: FullNames = False,
    quiet: Quiet = False,
) -> None:
    """Compare two runs, operation by operation.

    Operations of tracked workloads are paired by module path, source line, name and order, so that
    inserted and removed ones do not shift the rest. Recordings of devices (msprof databases, of one
    vendor or of two) are compared from the step downwards: what it consists of, classes of work,
    operations by name and shape, kernels. Of several recordings a side, such as a folder of ranks,
    the figures are those of one device on average.
    """
    from unified_prof.report.formats import DEVICE_FORMATS, DEVICE_SUFFIXES

    file = shapes.file_of(output)
    asked = format_ and format_.value
    shape = FormatOption(
        shapes.chosen(context, DEVICE_SUFFIXES, asked=asked, as_json=json_, file=file)
    )
    if file is None and sys.stdout.isatty() and not DEVICE_FORMATS[shape.value].for_terminal:
        raise UsageError(
            f"{shape.value} cannot be shown on a terminal",
            hint="write it to a file with -o",
            slug="not-for-a-terminal",
        )
    width, color = (None, False) if file else printing.terminal()
    how = _Shown(shape, by, top, everything, width, color, full_names, noise)
    if capture is not None and (base_capture or new_capture):
        raise UsageError(
            "--with is of both runs",
            hint="--base-with and --new-with for one each",
            slug="contradicting-options",
        )
    reading = _Reading(
        convert=convert,
        quiet=quiet or shape is not FormatOption.TEXT,
        output=file,
        captures=(base_capture or capture, new_capture or capture),
    )
    warnings: Sequence[str]
    if workload:
        if shape not in (FormatOption.TEXT, FormatOption.JSON, FormatOption.MARKDOWN):
            raise UsageError(
                f"--format {shape.value} is of one comparison, not of several workloads",
                hint="text, json or markdown; or compare each workload by itself",
                slug="contradicting-options",
            )
        if capture or base_capture or new_capture:
            raise UsageError(
                "--with is of two recordings, not of several workloads",
                hint="compare each workload by itself",
                slug="contradicting-options",
            )
        if base or new or more_base or more_new:
            raise UsageError(
                "--workload takes the place of BASE, NEW, --base and --new",
                hint="name every workload by --workload NAME=BASE:NEW",
                slug="contradicting-options",
            )
        if shape in _OF_DEVICES:
            raise _refused(shape, "several workloads together have no such page or table")
        text, warnings = _each(workloads.parsed(workload), reading, how)
    elif base is None or new is None:
        raise UsageError(
            "diff takes two reports, BASE and NEW", hint="uprof diff base new", slug="wrong-inputs"
        )
    else:
        sides = [base, *(more_base or [])], [new, *(more_new or [])]
        found = _compared(*sides, reading, how)
        text, warnings = found.text(), found.warnings
    if file is None:
        printing.put(text, for_people=shape is FormatOption.TEXT)
    else:
        printing.write(file, text, force=force)
    if shape is not FormatOption.TEXT and not quiet:
        for warning in warnings:
            printing.say(f"uprof: warning: {warning}")


@dataclass(frozen=True, slots=True)
class _Shown:
    """How a comparison is to be shown."""

    shape: FormatOption
    by: ByOption
    top: int
    everything: bool
    width: int | None
    color: bool
    full_names: bool
    noise: str | None


@dataclass(frozen=True, slots=True)
class _Reading:
    """How the reports of a side are read."""

    convert: bool
    quiet: bool
    output: Path | None
    captures: tuple[Path | None, Path | None]
    """Where the graphs were captured that each side replays."""

    def read_captures(self) -> tuple[Path | None, Path | None]:
        """Return what to read in place of the captures."""
        first, second = (None if one is None else self._capture(one) for one in self.captures)
        return first, second

    def _capture(self, path: Path) -> Path:
        made = converting.reports_of(
            path, convert=self.convert, quiet=self.quiet, several=False, output=self.output
        )
        return made.path

    def side(self, paths: Sequence[Path]) -> Side:
        return converting.side_of(paths, convert=self.convert, quiet=self.quiet, output=self.output)


@dataclass(frozen=True, slots=True)
class _Found:
    """A comparison, and how it is shown."""

    shape: FormatOption
    document: Callable[[], dict[str, Any]]
    words: Callable[[], str]
    warnings: Sequence[str]

    def text(self) -> str:
        if self.shape is FormatOption.JSON:
            return printing.json_text(self.document())
        return self.words()


def _each(given: workloads.Given, reading: _Reading, how: _Shown) -> tuple[str, Sequence[str]]:
    """Compare several workloads: what changed on the whole, then each by itself."""
    from unified_prof.compare.comparable import PEAK, TIMES
    from unified_prof.compare.gate import compare_each
    from unified_prof.report import comparison as shown

    found = {name: _compared(*sides, reading, how) for name, sides in given.items()}
    pairs = {
        name: (reading.side(base).run(), reading.side(new).run())
        for name, (base, new) in given.items()
    }
    noises = workloads.noises(how.noise, pairs)
    together = {
        metric: mean
        for metric in (*TIMES, PEAK)
        if (mean := compare_each(pairs, metric, noises)) is not None
    }
    warnings = [f"{name}: {one}" for name, each in found.items() for one in each.warnings]
    if how.shape is FormatOption.JSON:
        documents = {name: one.document() for name, one in found.items()}
        return printing.json_text(shown.diff_document(documents, together)), warnings
    return shown.diff_words(
        {name: one.words() for name, one in found.items()},
        together,
        as_markdown=how.shape is FormatOption.MARKDOWN,
    ), warnings


def _compared(base: Sequence[Path], new: Sequence[Path], reading: _Reading, how: _Shown) -> _Found:
    """Compare two sides, whatever they were recorded by."""
    from unified_prof.compare import device_diff

    before, after = reading.side(base), reading.side(new)
    with hints.for_reports(*before.given, *after.given):
        of_devices = device_diff.of_devices(
            before.reports,
            after.reports,
            (before.label, after.label),
            None if how.noise is None else told_noise(how.noise),
            reading.read_captures(),
        )
    if of_devices is not None:
        return _devices(of_devices, how)
    if any(reading.captures):
        raise device_diff.without_replays()
    return _samples(before, after, how)


def _devices(found: DeviceDifference, how: _Shown) -> _Found:
    """Return a comparison of devices."""
    if how.by is ByOption.ANNOTATION:
        raise UsageError(
            "--by annotation is of tracked workloads, and these reports are recordings of devices",
            hint="--by operation, line, module, class, shape or kernel; of one recording, "
            "uprof report --by annotation",
            slug="no-breakdown",
        )
    from unified_prof.report.device_documents import device_document
    from unified_prof.report.formats import DEVICE_FORMATS, DeviceRequest

    shown = DeviceRequest(
        by=how.by.value,
        top=how.top,
        everything=how.everything,
        width=how.width,
        color=how.color,
        full_names=how.full_names,
    )

    def words() -> str:
        return DEVICE_FORMATS[how.shape.value].produce(found, shown)

    return _Found(how.shape, lambda: device_document(found), words, found.warnings)


def _refused(shape: FormatOption, why: str) -> UsageError:
    return UsageError(
        f"--format {shape.value} is of two recordings of device work: {why}",
        hint="--format text, json or markdown",
        slug="unknown-format",
    )


def _samples(before: Side, after: Side, how: _Shown) -> _Found:
    """Return a comparison of tracked workloads."""
    from unified_prof.compare import diff as analysis
    from unified_prof.report import comparison, operation_difference

    if how.shape in _OF_DEVICES:
        raise _refused(how.shape, "these reports are of tracked workloads, or of the host alone")
    by = _BY_SAMPLES.get(how.by)
    if by is None:
        raise UsageError(
            f"--by {how.by.value} is of recordings of device work, which these reports are not",
            hint="--by operation, line, module or annotation",
            slug="no-breakdown",
        )
    runs = before.run(), after.run()
    for run in runs:
        if not len(run.operations) and not run.sizes and not run.totals:
            raise UsageError(
                f"{run.label} is empty: it has nothing to compare", slug="empty-report"
            )
    found = analysis.diff(*runs, by=by, noise=thresholds.noise(how.noise, runs[1]))
    shown: dict[str, Any] = {
        "top": how.top,
        "everything": how.everything,
        "full_names": how.full_names,
    }

    def words() -> str:
        if how.shape is FormatOption.MARKDOWN:
            return comparison.diff_markdown(found, **shown)
        return comparison.diff_text(found, width=how.width, color=how.color, **shown)

    return _Found(
        how.shape, lambda: operation_difference.difference_document(found), words, found.warnings
    )
