"""`uprof gate`: whether a change may pass, for CI."""

from __future__ import annotations

import os
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unified_prof.cli import hints, printing, thresholds
from unified_prof.cli import shape as shapes
from unified_prof.cli.options import AsJsonFormat, Force, Quiet
from unified_prof.errors import OutputError, UsageError

if TYPE_CHECKING:
    from unified_prof.analysis.compare.comparable import Run
    from unified_prof.analysis.compare.gate import Limits, Verdict


class FormatOption(str, Enum):
    """How a verdict is printed."""

    TEXT = "text"
    JSON = "json"
    MARKDOWN = "markdown"
    JUNIT = "junit"


_SUFFIXES = {
    "text": (".txt",),
    "json": (".json",),
    "markdown": (".md", ".markdown"),
    "junit": (".xml",),
}


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command(
        "gate",
        epilog="Exit code: 0 fine, 1 a regression, 3 inconclusive (too few samples, or they "
        "scatter too much), 2 wrong use, 7 no report or one that cannot be read.",
    )(gate)


def gate(
    context: typer.Context,
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="[BASE] NEW", help="The reports; with --baseline only the new one(s)."
        ),
    ],
    more_base: Annotated[
        list[Path] | None,
        typer.Option("--base", metavar="FILE", help="Another report of the base run, for samples."),
    ] = None,
    more_new: Annotated[
        list[Path] | None,
        typer.Option("--new", metavar="FILE", help="Another report of the new run, for samples."),
    ] = None,
    baseline: Annotated[
        str | None, typer.Option(metavar="NAME", help="Compare with this stored baseline.")
    ] = None,
    store: Annotated[
        str | None, typer.Option(help="Where baselines are: a file, or a SQLAlchemy URL.")
    ] = None,
    max_regress: Annotated[
        str, typer.Option(metavar="SHARE", help="How much worse is too much: 5% or 0.05.")
    ] = "5%",
    min_abs: Annotated[
        list[str] | None,
        typer.Option(
            metavar="AMOUNT",
            help="And by at least so much: a time such as 0.05ms, a size such as 1MiB.",
            show_default="0.05ms and 1MiB",
        ),
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            metavar="METRIC",
            help="total, forward, backward, peak-memory or operation:GLOB (name, module or line).",
            show_default="total",
        ),
    ] = None,
    format_: Annotated[
        FormatOption | None,
        typer.Option(
            "--format", help="How to print the verdict.", show_default="by -o's ending, or text"
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write to a file.")
    ] = None,
    force: Force = False,
    quiet: Quiet = False,
    json_: AsJsonFormat = False,
) -> None:
    """Refuse a run that is slower, or takes more memory, than a base allows.

    It is refused only if it exceeds both limits and the samples leave no doubt. Where
    GITHUB_STEP_SUMMARY is set, the verdict is appended to that file as Markdown.
    """
    from unified_prof.analysis.compare import gate as analysis

    file = shapes.file_of(output)
    asked = format_ and format_.value
    shape = FormatOption(shapes.chosen(context, _SUFFIXES, asked=asked, as_json=json_, file=file))
    limits = _limits(max_regress, min_abs or [])
    metrics = metric or ["total"]
    analysis.check_metrics(metrics)
    source = context.get_parameter_source("store")
    if baseline is None and source is not None and source.name == "COMMANDLINE":
        # As a setting of the project or the machine it may stand for the times it is needed.
        raise UsageError("--store is only used with --baseline")
    base, new = _sides(files, more_base or [], more_new or [], baseline, store)
    verdict = analysis.gate(base, new, metrics, limits)

    labels = (base.label, new.label)
    if file is not None:
        printing.write(file, _text(verdict, labels, shape, to_file=True), force=force)
    elif not (quiet and shape is FormatOption.TEXT):  # then the exit code says it
        printing.put(_text(verdict, labels, shape), for_people=shape is FormatOption.TEXT)
    if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
        _append(Path(summary), _text(verdict, labels, FormatOption.MARKDOWN))
    raise typer.Exit(verdict.exit_code)


def _limits(max_regress: str, min_abs: list[str]) -> Limits:
    from unified_prof.analysis.compare.gate import Limits

    time_ns, size_bytes = thresholds.absolute(min_abs)
    limits = Limits(max_regress=thresholds.fraction(max_regress))
    return replace(
        limits,
        min_abs_ns=limits.min_abs_ns if time_ns is None else time_ns,
        min_abs_bytes=limits.min_abs_bytes if size_bytes is None else size_bytes,
    )


def _text(
    verdict: Verdict, labels: tuple[str, str], shape: FormatOption, *, to_file: bool = False
) -> str:
    """Return the verdict on (base, new) in one of the formats."""
    from unified_prof.report import comparison

    if shape is FormatOption.JSON:
        return printing.json_text(comparison.gate_document(verdict, *labels))
    if shape is FormatOption.MARKDOWN:
        return comparison.gate_markdown(verdict, *labels)
    if shape is FormatOption.JUNIT:
        return comparison.gate_junit(verdict, *labels)
    width, color = (None, False) if to_file else printing.terminal()
    return comparison.gate_text(verdict, width=width, color=color)


def _sides(
    files: list[Path],
    more_base: list[Path],
    more_new: list[Path],
    baseline: str | None,
    store: str | None,
) -> tuple[Run, Run]:
    from unified_prof.analysis.compare import runs

    if baseline is None:
        if len(files) != 2:
            raise UsageError(
                f"the gate takes two reports, BASE and NEW, not {len(files)}",
                hint="give both, or only the new one with --baseline NAME",
            )
        with hints.for_reports(*files, *more_base, *more_new):
            return runs.load([files[0], *more_base]), runs.load([files[1], *more_new])
    if more_base:
        raise UsageError("--base is not used with --baseline: the baseline is the base")
    from unified_prof.baselines import keep

    with hints.for_reports(*files, *more_new):
        new = runs.load([*files, *more_new])
    return keep.load(baseline, store), new


def _append(path: Path, text: str) -> None:
    try:
        with path.open("a", encoding="utf-8") as summary:
            summary.write(text + "\n")
    except OSError as err:
        raise OutputError(f"GITHUB_STEP_SUMMARY {path} cannot be written: {err.strerror}") from err
