"""Options of `uprof gate` that other commands share, and the end of commands with a verdict."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, NoReturn

import click

from unified_prof.cli import command as cli
from unified_prof.cli import output as printing
from unified_prof.cli.output import Target
from unified_prof.compare import gate as analysis
from unified_prof.compare.diff import Difference
from unified_prof.errors import OutputError, system_errors

FORMATS = ("text", "json", "markdown", "junit")

WorkloadOption = Annotated[
    list[str] | None,
    cli.rare_option(
        "Reports of a workload, instead of BASE and NEW. Repeatable, for several workloads and "
        "several runs of one.",
        "--workload NAME=BASE:NEW",
    ),
]


@dataclass(frozen=True, slots=True)
class LimitOptions:
    """Limits of accepted regressions."""

    max_regress: str = cli.option("Largest accepted regression: 5% or 0.05.", "SHARE", default="5%")
    min_abs: list[str] | None = cli.rare_option(
        "Ignore regressions below this time (0.05ms) or size (1MiB). Repeatable. [default: 0.05ms "
        "and 1MiB]",
        "AMOUNT",
    )

    def limits(self) -> analysis.Limits:
        """Return the limits. Raises UsageError if an amount is not valid."""
        time_ns, size_bytes = analysis.parse_absolute_limits(self.min_abs or [])
        limits = analysis.Limits(max_regress=analysis.parse_fraction(self.max_regress))
        return replace(
            limits,
            min_abs_ns=limits.min_abs_ns if time_ns is None else time_ns,
            min_abs_bytes=limits.min_abs_bytes if size_bytes is None else size_bytes,
        )


@dataclass(frozen=True, slots=True)
class MetricOptions(LimitOptions):
    """Metrics and limits of accepted regressions."""

    metric: list[str] | None = cli.option(
        "total, forward, backward, peak-memory, operation:GLOB (name, module or line), or an "
        "exact count such as flops, whose limit is 0. NAME=5% sets a limit. Repeatable. [default: "
        "exact counts and total, or peak-memory]",
        "METRIC",
    )
    noise: cli.Noise = None

    @property
    def metrics(self) -> list[str]:
        """The metrics to judge, empty for the default."""
        return [_split_limit(text)[0] for text in self.metric or []]

    def limits(self) -> analysis.Limits:
        """Return the limits, also of single metrics.

        Raises UsageError if an amount is not valid.
        """
        own = dict(map(_split_limit, self.metric or []))
        by_metric = {
            name: analysis.parse_fraction(one, "--metric") for name, one in own.items() if one
        }
        return replace(LimitOptions.limits(self), by_metric=by_metric)


def _split_limit(text: str) -> tuple[str, str]:
    """Return a metric and its own limit, which may be empty."""
    name, equals, limit = text.rpartition("=")
    return (name, limit) if equals and re.fullmatch(r"[\d.]+ ?%?", limit) else (text, "")


def end_with_verdict(
    verdict: analysis.Verdict | analysis.Verdicts,
    labels: Mapping[str, tuple[str, str]],
    target: Target,
    *,
    causes: Mapping[str, Difference] | None = None,
    quiet: bool,
) -> NoReturn:
    """Print or write a verdict, add it to the job summary of GitHub Actions, and exit with it.

    `labels` has the names of both sides by workload; the name of a single workload is empty.
    `causes` has the differences of the workloads with a regression, which text shows. If `quiet`,
    text is not printed, since the exit code reports the verdict. Raises OutputError if the file or
    the summary cannot be written.
    """
    from unified_prof.report import verdicts as documents

    def text(target: Target) -> str:
        if target.shape == "junit":
            return documents.verdict_junit(verdict, labels)
        return target.render(
            lambda: documents.verdict_fields(verdict, labels),
            lambda: documents.verdict_document(verdict, labels, causes),
        )

    if target.file is not None or not (quiet and target.shape == printing.TEXT):
        target.deliver(text(target))
        if target.file is not None and not quiet:
            printing.print_message(f"{target.file}: {verdict.outcome}")
    if path := os.environ.get("GITHUB_STEP_SUMMARY"):
        what = f"cannot write GITHUB_STEP_SUMMARY {path}"
        with (
            system_errors(OutputError, what, slug="cannot-write"),
            Path(path).open("a", encoding="utf-8") as summary,
        ):
            summary.write(text(Target(None, "markdown", force=False)) + "\n")
    raise click.exceptions.Exit(verdict.exit_code)
