"""`uprof diff`: what changed from one run to another, and how much it explains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from unified_prof.analysis.compare.thresholds import told_noise
from unified_prof.cli import converting, hints, printing, thresholds
from unified_prof.cli import shape as shapes
from unified_prof.cli.converting import Convert, Side
from unified_prof.cli.options import AsJsonFormat, Force, FullNames, Noise, Quiet
from unified_prof.errors import UsageError

if TYPE_CHECKING:
    from unified_prof.analysis.compare.device.difference import DeviceDifference
    from unified_prof.analysis.compare.diff import By


class ByOption(str, Enum):
    """What operations are summed up by."""

    OPERATION = "operation"
    LINE = "line"
    MODULE = "module"
    CLASS = "class"
    SHAPE = "shape"
    KERNEL = "kernel"


_BY_SAMPLES: Final[Mapping[ByOption, By]] = {
    ByOption.OPERATION: "operation",
    ByOption.LINE: "line",
    ByOption.MODULE: "module",
}
"""What tracked workloads can be summed up by; recordings of devices by all of them."""


class FormatOption(str, Enum):
    """How a comparison is printed."""

    TEXT = "text"
    JSON = "json"
    MARKDOWN = "markdown"


_SUFFIXES = {"text": (".txt",), "json": (".json",), "markdown": (".md", ".markdown")}


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
        Path, typer.Argument(metavar="BASE", help="A report, or a run's folder: before.")
    ],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="The same: after.")],
    more_base: Annotated[
        list[Path] | None,
        typer.Option("--base", metavar="FILE", help="Another report of the base run, for samples."),
    ] = None,
    more_new: Annotated[
        list[Path] | None,
        typer.Option("--new", metavar="FILE", help="Another report of the new run, for samples."),
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
            help="How to print it; json has every row.",
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
    from unified_prof.analysis.compare import compared

    file = shapes.file_of(output)
    asked = format_ and format_.value
    shape = FormatOption(shapes.chosen(context, _SUFFIXES, asked=asked, as_json=json_, file=file))
    silent = quiet or shape is not FormatOption.TEXT
    before, after = (
        converting.side_of(side, convert=convert, quiet=silent, output=file)
        for side in ([base, *(more_base or [])], [new, *(more_new or [])])
    )
    with hints.for_reports(*before.given, *after.given):
        of_devices = compared.of_devices(
            before.reports,
            after.reports,
            (before.label, after.label),
            None if noise is None else told_noise(noise),
        )
    width, color = (None, False) if file else printing.terminal()
    how = _Shown(shape, by, top, everything, width, color, full_names, noise)
    if of_devices is not None:
        text, warnings = _devices(of_devices, how)
    else:
        text, warnings = _samples(before, after, how)
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


def _devices(found: DeviceDifference, how: _Shown) -> tuple[str, Sequence[str]]:
    """Return a comparison of devices in words, and its warnings."""
    from unified_prof.report import devices

    if how.shape is FormatOption.JSON:
        return printing.json_text(devices.document(found)), found.warnings
    if how.shape is FormatOption.MARKDOWN:
        text = devices.as_markdown(
            found,
            by=how.by.value,
            top=how.top,
            everything=how.everything,
            full_names=how.full_names,
        )
    else:
        text = devices.text(
            found,
            by=how.by.value,
            top=how.top,
            everything=how.everything,
            width=how.width,
            color=how.color,
            full_names=how.full_names,
        )
    return text, found.warnings


def _samples(before: Side, after: Side, how: _Shown) -> tuple[str, Sequence[str]]:
    """Return a comparison of tracked workloads in words, and its warnings."""
    from unified_prof.analysis.compare import diff as analysis
    from unified_prof.report import comparison, difference

    by = _BY_SAMPLES.get(how.by)
    if by is None:
        raise UsageError(
            f"--by {how.by.value} is of recordings of device work, which these reports are not",
            hint="--by operation, line or module",
            slug="no-breakdown",
        )
    runs = before.run(), after.run()
    for run in runs:
        if not len(run.operations) and not run.sizes and not run.totals:
            raise UsageError(
                f"{run.label} is empty: it has nothing to compare", slug="empty-report"
            )
    found = analysis.diff(*runs, by=by, noise=thresholds.noise(how.noise, runs[1]))
    if how.shape is FormatOption.JSON:
        return printing.json_text(difference.document(found)), found.warnings
    if how.shape is FormatOption.MARKDOWN:
        text = comparison.diff_markdown(
            found, top=how.top, everything=how.everything, full_names=how.full_names
        )
    else:
        text = comparison.diff_text(
            found,
            top=how.top,
            everything=how.everything,
            width=how.width,
            color=how.color,
            full_names=how.full_names,
        )
    return text, found.warnings
