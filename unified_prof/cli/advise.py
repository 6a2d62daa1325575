"""Command `uprof advise`: ranked findings, and estimated step times (`--what-if`)."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from unified_prof.cli import output as printing
from unified_prof.cli.command import (
    FullNames,
    OneRank,
    ReportPath,
    command,
    flag,
    formats_of,
    option,
)
from unified_prof.cli.output import ResultOptions
from unified_prof.cli.report_input import Convert, Reader
from unified_prof.errors import UsageError
from unified_prof.pipeline import rank_runs

if TYPE_CHECKING:
    from unified_prof.explain.api import Opened
    from unified_prof.explain.report_questions import Change
    from unified_prof.recording.model import Finding
    from unified_prof.report.document import Document


_FORMATS = ("text", "json", "markdown")
# Default number of findings in text and Markdown; JSON has all. Also the number of candidates that
# `--what-if` tries.
_DEFAULT_ROWS = 10


@dataclass(frozen=True, slots=True)
class ChangeOptions:
    """Changes of a what-if estimate."""

    faster: list[str] | None = option(
        metavar="NAME=K",
        help="Estimate the step time if an operation, kernel, collective, call or class "
        "(kernel, communication, copy, host, input) were K times as fast; host:NAME: on the "
        "host. Repeatable.",
    )
    without: list[str] | None = option(
        metavar="NAME",
        help="Estimate the step time without an operation, kernel, collective, call or class. "
        "Repeatable.",
    )

    device: str | None = option(
        metavar="NAME",
        help="Estimate the step time with the kernels on another device, for example MI300X.",
    )

    def changes(self) -> list[Change]:
        """Return the changes.

        Raises:
            UsageError: A factor is not a positive number.
        """
        from unified_prof.explain.report_questions import Change

        changes = []
        for text in self.faster or ():
            name, _, number = text.rpartition("=")
            try:
                factor = float(number.removesuffix("x"))
            except ValueError:
                factor = math.nan
            if not name or not (0 < factor < math.inf):
                raise UsageError(
                    f"--faster {text}: expected NAME=K, for example aten::mm=2",
                    slug="wrong-option-value",
                )
            changes.append(Change(name, factor))
        return changes + [Change(name, math.inf) for name in self.without or ()]


@command(
    "advise",
    epilog="Exit codes: 0 success, with or without findings; 2 usage error; 6 "
    "recording unreadable; 7 report missing or unreadable; 9 output cannot be written.",
)
def advise(
    *,
    path: ReportPath,
    top: int | None = option(
        min=1, help="Number of findings to show.", show_default="10; all for json"
    ),
    result: ResultOptions = formats_of(_FORMATS),
    estimate: bool = flag(
        "--what-if",
        help="Estimate the step time if each of the most expensive items of the critical path "
        "were twice as fast or gone.",
    ),
    changed: ChangeOptions,
    rank: OneRank = None,
    full_names: FullNames = False,
    convert: Convert = False,
) -> None:
    """List findings by cost, with what to try, or estimate what-if times.

    Each finding states the time that a step could save, its evidence, and its confidence. Rules
    whose input was not recorded are listed as skipped. For a multi-rank run, findings about the run
    come first. docs/advice.md describes each rule.

    With --what-if, --faster, --without or --device, replays the recorded schedule with changed
    durations and prints the step time; the order on streams and threads, launches and waits stay
    the same.
    """
    from unified_prof.explain.api import open_reports
    from unified_prof.report import advice

    changes = changed.changes()
    estimate = estimate or bool(changes) or changed.device is not None
    target, quiet = result.target(advice.ADVICE_SUFFIXES), result.quiet
    target.refuse_existing()

    def print_result(as_json: Callable[[], str], as_document: Callable[[], Document]) -> None:
        target.deliver(target.render_document(as_json, as_document, full_names=full_names))

    def print_findings(of_run: tuple[Finding, ...], opened: Opened | None) -> None:
        reports = [] if opened is None else advice.gather_advice(opened)
        rows = top or _DEFAULT_ROWS
        print_result(
            lambda: advice.advice_json(reports, opened, of_run, top=top),
            lambda: advice.advice_document(reports, of_run, top=rows, is_run=opened is None),
        )

    of_run: tuple[Finding, ...] = ()
    reader = Reader(convert, quiet, target.file)
    with ExitStack() as stack:
        if rank is not None or (path.is_dir() and not convert and not estimate):
            overview = stack.enter_context(reader.ranks(path, needed=rank is not None))
            of_run = () if overview is None or estimate else advice.run_findings(overview)
            if rank is not None:
                path = rank_runs.rank_report(overview, path, rank)
            elif overview is not None and overview.run.file.parent == path:
                # A cluster summary may be read without its ranks' recordings.
                print_findings(of_run[:top] if target.shape == printing.JSON else of_run, None)
                if not quiet:
                    printing.print_message(
                        "uprof: hint: use --rank N to analyze the recording of one rank"
                    )
                return
        ready = reader.reports(path)
        stack.enter_context(printing.with_convert_hint(path))
        opened = stack.enter_context(open_reports(ready.path, ready.missing))
        if estimate:
            answers = advice.gather_what_if(
                opened, changes, top=top or _DEFAULT_ROWS, device=changed.device
            )
            print_result(
                lambda: advice.what_if_json(answers, changes, opened),
                lambda: advice.what_if_document(answers, changes),
            )
        else:
            print_findings(of_run, opened)
        missing = opened.coverage.sentence
    printing.end_if_missing(missing)


@command("what-if", replaced_by="advise --what-if")
def what_if(
    *,
    path: ReportPath,
    changed: ChangeOptions,
    top: int = option(default=_DEFAULT_ROWS, min=1, help="Number of candidates to try."),
    result: ResultOptions = formats_of(_FORMATS),
    rank: OneRank = None,
    full_names: FullNames = False,
    convert: Convert = False,
) -> None:
    """Estimate the step time if kernels, copies or host work were faster."""
    advise(
        path=path,
        top=top,
        result=result,
        estimate=True,
        changed=changed,
        rank=rank,
        full_names=full_names,
        convert=convert,
    )
