"""Inputs and limits of `uprof gate`, and output of verdicts."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from unified_prof.cli import output, workloads
from unified_prof.cli.command import HELP_ALL, MoreBase, MoreNew, Noise, argument, option
from unified_prof.cli.report_input import Convert, Reader
from unified_prof.cli.workloads import WorkloadOption
from unified_prof.compare.gate import (
    default_metrics,
    parse_absolute_limits,
    parse_fraction,
    parse_noise,
)
from unified_prof.errors import OutputError, UsageError

if TYPE_CHECKING:
    from unified_prof.compare.comparable import Run
    from unified_prof.compare.confidence import Noise as NoiseOfRuns
    from unified_prof.compare.gate import Limits, Pairs, Verdict, Verdicts


@dataclass(frozen=True, slots=True)
class Sides:
    """Reports of two runs, or of one run and a baseline."""

    files: list[Path] | None = argument(
        default=None, metavar="[BASE] NEW", help="Reports BASE and NEW; with --baseline only NEW."
    )
    more_base: MoreBase = None
    more_new: MoreNew = None
    workload: WorkloadOption = None
    baseline: str | None = option(metavar="NAME", help="Compare with this stored baseline.")
    store: str | None = option(
        help="Baseline store: an SQLite file or a SQLAlchemy URL.", shown_by=HELP_ALL
    )

    convert: Convert = False

    def check(self) -> None:
        """Check that reports are given in one way only.

        Raises:
            UsageError: --workload is combined with BASE, NEW, --base, --new or --baseline.
        """
        others = self.files or self.more_base or self.more_new or self.baseline
        if self.workload and others:
            raise UsageError(
                "--workload cannot be combined with BASE, NEW, --base, --new and --baseline",
                hint="use --workload NAME=BASE:NEW for each workload",
                slug="contradicting-options",
            )

    def pairs(self, *, quiet: bool, output: Path | None = None) -> Pairs:
        """Return the runs of each workload; see `load`."""
        given = workloads.parse_workloads(self.workload or [])
        return workloads.load(given, Reader(self.convert, quiet, output))

    def load(self, *, quiet: bool, output: Path | None = None) -> tuple[Run, Run]:
        """Return the baseline run and the candidate run.

        Args:
            quiet: Print errors only.
            output: File that will be written.

        Raises:
            UsageError: The arguments do not select a baseline and a candidate.
            RawFormatError: A recording cannot be converted.
            StoreError: A report or a baseline cannot be read.
        """
        more_base, more_new = self.more_base or [], self.more_new or []
        files, reader = self.files or [], Reader(self.convert, quiet, output)
        if self.baseline is None:
            if len(files) != 2:
                raise UsageError(
                    f"gate needs two reports, BASE and NEW, not {len(files)}",
                    hint="give both, or only NEW with --baseline NAME",
                    slug="wrong-inputs",
                )
            base, new = files
            return reader.run([base, *more_base]), reader.run([new, *more_new])
        if more_base:
            raise UsageError(
                "--base cannot be combined with --baseline",
                slug="option-without-effect",
            )
        from unified_prof.baselines import api

        if not files:
            raise UsageError("--baseline needs a report of the candidate", slug="wrong-inputs")
        new_run = reader.run([*files, *more_new])
        return api.load_baseline(self.baseline, self.store), new_run


@dataclass(frozen=True, slots=True)
class Allowed:
    """Limits of accepted regressions."""

    max_regress: str = option(
        default="5%", metavar="SHARE", help="Largest accepted regression: 5% or 0.05."
    )
    min_abs: list[str] | None = option(
        metavar="AMOUNT",
        help="Ignore regressions below this time (0.05ms) or size (1MiB). Repeatable.",
        show_default="0.05ms and 1MiB",
        shown_by=HELP_ALL,
    )
    metric: list[str] | None = option(
        metavar="METRIC",
        help="total, forward, backward, peak-memory, operation:GLOB (name, module or line), "
        "or an exact count such as flops, whose limit is 0. NAME=5% sets a limit. "
        "Repeatable.",
        show_default="exact counts and total, or peak-memory",
    )

    noise: Noise = None

    @property
    def metrics(self) -> list[str]:
        """Return the metrics to judge, empty for the default."""
        return [_split_limit(text)[0] for text in self.metric or []]

    def metrics_of(self, pairs: Iterable[tuple[Run, Run]]) -> list[str]:
        """Return the metrics to judge these runs by."""
        return self.metrics or default_metrics(pairs)

    def given_noise(self) -> NoiseOfRuns | None:
        """Return the run-to-run variation given by --noise, or None."""
        return None if self.noise is None else parse_noise(self.noise)

    def limits(self) -> Limits:
        """Return the limits.

        Raises:
            UsageError: An amount is not valid.
        """
        from unified_prof.compare.gate import Limits

        time_ns, size_bytes = parse_absolute_limits(self.min_abs or [])
        limits = Limits(max_regress=parse_fraction(self.max_regress))
        own = dict(_split_limit(text) for text in self.metric or [])
        return replace(
            limits,
            by_metric={name: parse_fraction(one, "--metric") for name, one in own.items() if one},
            min_abs_ns=limits.min_abs_ns if time_ns is None else time_ns,
            min_abs_bytes=limits.min_abs_bytes if size_bytes is None else size_bytes,
        )


def _split_limit(text: str) -> tuple[str, str]:
    """Return a metric and its own limit, which may be empty."""
    name, equals, limit = text.rpartition("=")
    return (name, limit) if equals and re.fullmatch(r"[\d.]+ ?%?", limit) else (text, "")


SUFFIXES = {
    "text": (".txt",),
    "json": (".json",),
    "markdown": (".md", ".markdown"),
    "junit": (".xml",),
}


def print_verdict(
    text: Callable[[str, bool], str], shape: str, file: Path | None, *, force: bool, quiet: bool
) -> None:
    """Print or write a verdict, and append it to the job summary of GitHub Actions if there is one.

    Args:
        text: (format, True if it is written to a file) -> the verdict.
        shape: Output format.
        file: File to write, or None for stdout.
        force: Overwrite the file.
        quiet: Do not print text, since the exit code reports the verdict.

    Raises:
        OutputError: The file or the summary cannot be written.
    """
    if file is not None or not (quiet and shape == "text"):
        content = text(shape, file is not None)
        output.deliver(content, file, force=force, for_people=shape == "text")
    if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
        _append(Path(summary), text("markdown", False))


def verdicts_text(verdicts: Verdicts, pairs: Pairs, shape: str, *, to_file: bool = False) -> str:
    """Render the verdicts on several workloads."""
    from unified_prof.report import verdict_documents

    if shape == "json":
        return output.json_text(verdict_documents.verdicts_fields(verdicts, pairs))
    if shape == "junit":
        return verdict_documents.verdicts_junit(verdicts, pairs)
    document = verdict_documents.verdicts_document(verdicts)
    return output.render(document, shape, to_file=to_file)


def verdict_text(
    verdict: Verdict, labels: tuple[str, str], shape: str, *, to_file: bool = False
) -> str:
    """Render the verdict on (baseline, candidate)."""
    from unified_prof.report import verdict_documents

    if shape == "json":
        return output.json_text(verdict_documents.gate_fields(verdict, *labels))
    if shape == "junit":
        return verdict_documents.gate_junit(verdict, *labels)
    document = verdict_documents.gate_document(verdict, *labels)
    return output.render(document, shape, to_file=to_file)


def _append(path: Path, text: str) -> None:
    try:
        with path.open("a", encoding="utf-8") as summary:
            summary.write(text + "\n")
    except OSError as err:
        raise OutputError(
            f"cannot write GITHUB_STEP_SUMMARY {path}: {err.strerror}", slug="cannot-write"
        ) from err
