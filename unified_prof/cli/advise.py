"""Command `uprof advise`: ranked findings, and estimated step times (`--what-if`)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from unified_prof.cli import command as cli
from unified_prof.cli import output as printing
from unified_prof.cli.output import ResultOptions
from unified_prof.errors import UsageError
from unified_prof.pipeline import rank_runs
from unified_prof.pipeline.report_input import Reader

if TYPE_CHECKING:
    from unified_prof.explain.report_questions import Change
    from unified_prof.recording.model import Finding

# Default number of findings in text and Markdown; JSON has all. Also the number of candidates that
# `--what-if` tries.
_DEFAULT_ROWS = 10


@cli.command("what-if", replaced_by="advise --what-if")
@cli.command(
    "advise",
    epilog="Exit codes: 0 success, with or without findings; 2 usage error; 6 "
    "recording unreadable; 7 report missing or unreadable; 9 output cannot be written.",
)
def advise(
    path: cli.ReportPath,
    top: int | None = cli.option("Number of findings to show. [default: 10; all for json]", min=1),
    result: ResultOptions = cli.formats_of("text", "json", "markdown"),
    estimate: bool = cli.flag(
        "For each of the most expensive items of the critical path, estimate the step time if it "
        "were twice as fast or gone.",
        "--what-if",
    ),
    faster: list[str] | None = cli.option(
        "Estimate the step time if an operation, kernel, collective, call or class (kernel, "
        "communication, copy, host, input) were K times as fast; host:NAME selects host work. "
        "Repeatable.",
        "NAME=K",
    ),
    without: list[str] | None = cli.option(
        "Estimate the step time without an operation, kernel, collective, call or class. "
        "Repeatable.",
        "NAME",
    ),
    device: str | None = cli.option(
        "Estimate the step time with the kernels on another device, for example MI300X.", "NAME"
    ),
    rank: cli.OneRank = None,
    full_names: cli.FullNames = False,
    convert: cli.Convert = False,
) -> None:
    """List findings by cost with advice, or estimate the gain of a change.

    Each finding states the time that a step could save, its evidence, and its confidence. Rules
    whose input was not recorded are listed as skipped. For a multi-rank run, findings about the run
    come first. docs/advice.md describes each rule.

    With --what-if, --faster, --without or --device, replays the recorded schedule with changed
    durations and prints the step time; the order on streams and threads, launches and waits stay
    the same.
    """
    from unified_prof.report import advice

    changes = [*_changes(faster or (), without or ())]
    estimate = estimate or bool(changes) or device is not None
    target, rows, opened = result.target(), top or _DEFAULT_ROWS, None
    of_run: Sequence[Finding] = ()
    reader = Reader(result.printer, convert, target.file)
    with ExitStack() as stack:
        is_summary = False
        if rank is not None or (path.is_dir() and not convert and not estimate):
            overview = stack.enter_context(reader.ranks(path, needed=rank is not None))
            of_run = () if overview is None or estimate else advice.run_findings(overview)
            if rank is not None:
                path = rank_runs.rank_report(overview, path, rank)
            else:
                # A cluster summary may be read without its ranks' recordings.
                is_summary = overview is not None and overview.run.file.parent == path
                of_run = of_run[:top] if is_summary else of_run
        if not is_summary:
            opened = stack.enter_context(reader.opened(path))
        if opened is not None and estimate:
            answers = advice.gather_what_if(opened, changes, top=rows, device=device)
            text = target.render(
                lambda: advice.what_if_record(answers, changes, opened),
                lambda: advice.what_if_document(answers, changes),
                full_names=full_names,
            )
        else:
            reports = [] if opened is None else advice.gather_advice(opened)
            text = target.render(
                lambda: advice.advice_record(reports, opened, of_run, top=top),
                lambda: advice.advice_document(reports, of_run, top=rows, is_run=is_summary),
                full_names=full_names,
            )
        target.deliver(text)
    if is_summary:
        result.printer.hint("use --rank N to analyze the recording of one rank")
    printing.end_if_missing("" if opened is None else opened.coverage.sentence)


def _changes(faster: Sequence[str], without: Sequence[str]) -> Iterator[Change]:
    """Yield the changes. Raises UsageError if a factor is not a positive number."""
    from unified_prof.explain.report_questions import Change

    for text in faster:
        name, _, number = text.rpartition("=")
        try:
            factor = float(number.removesuffix("x"))
        except ValueError:
            factor = math.nan
        if not name or not (0 < factor < math.inf):
            raise UsageError(
                f"--faster {text}: expected NAME=K with K above 0, for example aten::mm=2",
                slug="wrong-option-value",
            )
        yield Change(name, factor)
    for name in without:
        yield Change(name, math.inf)
