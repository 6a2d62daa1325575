"""What the gate compares: two runs, or one and a baseline; and how much worse it may be.

Verdicts printed: by each format, and on the summary of a job.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unified_prof.cli import convert as converting
from unified_prof.cli import output, workloads
from unified_prof.cli.command import Noise
from unified_prof.cli.convert import Convert
from unified_prof.cli.workloads import WorkloadOption
from unified_prof.compare.gate import absolute, fraction, told_noise
from unified_prof.errors import OutputError, UsageError

if TYPE_CHECKING:
    from unified_prof.compare.comparable import Run
    from unified_prof.compare.confidence import Noise as NoiseOfRuns
    from unified_prof.compare.gate import Limits, Pairs, Verdict, Verdicts


@dataclass(frozen=True, slots=True)
class Sides:
    """The reports of two runs, or those of one and a baseline."""

    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[BASE] NEW", help="The reports; with --baseline only the new one(s)."
        ),
    ] = None
    more_base: Annotated[
        list[Path] | None,
        typer.Option("--base", metavar="FILE", help="Another report of the base run, for samples."),
    ] = None
    more_new: Annotated[
        list[Path] | None,
        typer.Option("--new", metavar="FILE", help="Another report of the new run, for samples."),
    ] = None
    workload: WorkloadOption = None
    baseline: Annotated[
        str | None, typer.Option(metavar="NAME", help="Compare with this stored baseline.")
    ] = None
    store: Annotated[
        str | None, typer.Option(help="Where baselines are: a file, or a SQLAlchemy URL.")
    ] = None

    convert: Convert = False

    def check(self) -> None:
        """Refuse reports that are named in two ways.

        Raises:
            UsageError: they are.
        """
        others = self.files or self.more_base or self.more_new or self.baseline
        if self.workload and others:
            raise UsageError(
                "--workload takes the place of BASE, NEW, --base, --new and --baseline",
                hint="name every workload by --workload NAME=BASE:NEW",
                slug="contradicting-options",
            )

    def pairs(self, *, quiet: bool, output: Path | None = None) -> Pairs:
        """Return the runs of each workload; see `load`."""
        given = workloads.parsed(self.workload or [])
        return workloads.load(given, convert=self.convert, quiet=quiet, output=output)

    def load(self, *, quiet: bool, output: Path | None = None) -> tuple[Run, Run]:
        """Return the base and the new run.

        Args:
            quiet: Whether to say errors only.
            output: The file that will be written.

        Raises:
            UsageError: what is named is not two sides.
            RawFormatError: a recording cannot be converted.
            StoreError: a report or a baseline cannot be read.
        """
        more_base, more_new = self.more_base or [], self.more_new or []
        files = self.files or []
        if self.baseline is None:
            if len(files) != 2:
                raise UsageError(
                    f"the gate takes two reports, BASE and NEW, not {len(files)}",
                    hint="give both, or only the new one with --baseline NAME",
                    slug="wrong-inputs",
                )
            base, new = files
            return self._run([base, *more_base], quiet, output), self._run(
                [new, *more_new], quiet, output
            )
        if more_base:
            raise UsageError(
                "--base is not used with --baseline: the baseline is the base",
                slug="option-without-effect",
            )
        from unified_prof.baselines import api

        if not files:
            raise UsageError(
                "the gate takes the reports of the new run beside --baseline", slug="wrong-inputs"
            )
        new_run = self._run([*files, *more_new], quiet, output)
        return api.load_baseline(self.baseline, self.store), new_run

    def _run(self, paths: Sequence[Path], quiet: bool, output: Path | None) -> Run:
        return converting.run_of(paths, convert=self.convert, quiet=quiet, output=output)


@dataclass(frozen=True, slots=True)
class Allowed:
    """How much worse what may become."""

    max_regress: Annotated[
        str, typer.Option(metavar="SHARE", help="How much worse is too much: 5% or 0.05.")
    ] = "5%"
    min_abs: Annotated[
        list[str] | None,
        typer.Option(
            metavar="AMOUNT",
            help="And by at least so much: a time such as 0.05ms, a size such as 1MiB.",
            show_default="0.05ms and 1MiB",
        ),
    ] = None
    metric: Annotated[
        list[str] | None,
        typer.Option(
            metavar="METRIC",
            help="total, forward, backward, peak-memory or operation:GLOB (name, module or line).",
            show_default="total",
        ),
    ] = None

    noise: Noise = None

    @property
    def metrics(self) -> list[str]:
        """The metrics that are judged."""
        return self.metric or ["total"]

    def told(self) -> NoiseOfRuns | None:
        """Return how much runs differ as --noise says."""
        return None if self.noise is None else told_noise(self.noise)

    def limits(self) -> Limits:
        """Return the limits.

        Raises:
            UsageError: an amount is none.
        """
        from unified_prof.compare.gate import Limits

        time_ns, size_bytes = absolute(self.min_abs or [])
        limits = Limits(max_regress=fraction(self.max_regress))
        return replace(
            limits,
            min_abs_ns=limits.min_abs_ns if time_ns is None else time_ns,
            min_abs_bytes=limits.min_abs_bytes if size_bytes is None else size_bytes,
        )


class FormatOption(str, Enum):
    """How a verdict is printed."""

    TEXT = "text"
    JSON = "json"
    MARKDOWN = "markdown"
    JUNIT = "junit"


SUFFIXES = {
    "text": (".txt",),
    "json": (".json",),
    "markdown": (".md", ".markdown"),
    "junit": (".xml",),
}


def append_summary(text: Callable[[], str]) -> None:
    """Append Markdown to the summary of a job on GitHub, where there is one.

    Raises:
        OutputError: it cannot be written.
    """
    if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
        _append(Path(summary), text())


def verdicts_text(
    verdicts: Verdicts, pairs: Pairs, shape: FormatOption, *, to_file: bool = False
) -> str:
    """Return the verdicts on several workloads in one of the formats."""
    from unified_prof.report import comparison as shown

    if shape is FormatOption.JSON:
        return output.json_text(shown.verdicts_document(verdicts, pairs))
    if shape is FormatOption.MARKDOWN:
        return shown.verdicts_markdown(verdicts, pairs)
    if shape is FormatOption.JUNIT:
        return shown.verdicts_junit(verdicts, pairs)
    width, color = (None, False) if to_file else output.terminal()
    return shown.verdicts_text(verdicts, width=width, color=color)


def verdict_text(
    verdict: Verdict, labels: tuple[str, str], shape: FormatOption, *, to_file: bool = False
) -> str:
    """Return the verdict on (base, new) in one of the formats."""
    from unified_prof.report import comparison

    if shape is FormatOption.JSON:
        return output.json_text(comparison.gate_document(verdict, *labels))
    if shape is FormatOption.MARKDOWN:
        return comparison.gate_markdown(verdict, *labels)
    if shape is FormatOption.JUNIT:
        return comparison.gate_junit(verdict, *labels)
    width, color = (None, False) if to_file else output.terminal()
    return comparison.gate_text(verdict, width=width, color=color)


def _append(path: Path, text: str) -> None:
    try:
        with path.open("a", encoding="utf-8") as summary:
            summary.write(text + "\n")
    except OSError as err:
        raise OutputError(
            f"GITHUB_STEP_SUMMARY {path} cannot be written: {err.strerror}", slug="cannot-write"
        ) from err
