"""Command `uprof gate`; with `--until-sure` and `--self-test` it runs the workload itself."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from unified_prof.base import signals
from unified_prof.cli import output as printing
from unified_prof.cli import report_input
from unified_prof.cli.command import (
    HELP_ALL,
    MoreBase,
    MoreNew,
    Noise,
    argument,
    command,
    formats_of,
    option,
)
from unified_prof.cli.output import ResultOptions, Target
from unified_prof.cli.report_input import Convert, Reader, WorkloadOption
from unified_prof.compare import gate as analysis
from unified_prof.errors import OutputError, UsageError

if TYPE_CHECKING:
    from unified_prof.compare.comparable import Run
    from unified_prof.compare.confidence import Noise as NoiseOfRuns
    from unified_prof.pipeline.rounds import Messages, Workload


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

    def load(self, reader: Reader) -> tuple[Run, Run]:
        """Return the baseline run and the candidate run.

        Raises:
            UsageError: The arguments do not select a baseline and a candidate.
            RawFormatError: A recording cannot be converted.
            StoreError: A report or a baseline cannot be read.
        """
        more_base, more_new = self.more_base or [], self.more_new or []
        files = self.files or []
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
                "--base cannot be combined with --baseline", slug="option-without-effect"
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
        return self.metrics or analysis.default_metrics(pairs)

    def given_noise(self) -> NoiseOfRuns | None:
        """Return the run-to-run variation given by --noise, or None."""
        return None if self.noise is None else analysis.parse_noise(self.noise)

    def limits(self) -> analysis.Limits:
        """Return the limits.

        Raises:
            UsageError: An amount is not valid.
        """
        time_ns, size_bytes = analysis.parse_absolute_limits(self.min_abs or [])
        limits = analysis.Limits(max_regress=analysis.parse_fraction(self.max_regress))
        own = dict(_split_limit(text) for text in self.metric or [])
        return replace(
            limits,
            by_metric={
                name: analysis.parse_fraction(one, "--metric") for name, one in own.items() if one
            },
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


@dataclass(frozen=True, slots=True)
class Rounds:
    """Options of --until-sure and --self-test."""

    until_sure: str | None = option(
        metavar="COMMAND",
        help="BASE and NEW are checkouts: run `uprof run COMMAND` in both, in lock-step, until "
        "the verdict is certain. Several workloads: one NAME=COMMAND per line.",
    )
    self_test: str | None = option(
        metavar="COMMAND",
        help="Run this command against itself, and show the smallest change that this machine "
        "can detect.",
    )
    rounds: int | None = option(
        min=1,
        help="Maximum number of rounds, 3 or more; each starts both sides anew.",
        show_default="12; 6 with --self-test",
        shown_by=HELP_ALL,
    )
    timeout: int = option(
        default=600,
        min=1,
        metavar="SECONDS",
        help="Fail if a run makes no progress for this long.",
        shown_by=HELP_ALL,
    )
    keep: Path | None = option(
        metavar="DIR", help="Keep the reports of these runs in a new directory.", shown_by=HELP_ALL
    )
    base_python: Path | None = option(
        metavar="FILE",
        help="Python interpreter for BASE, if its package is installed in an environment.",
        show_default="the running interpreter",
        shown_by=HELP_ALL,
    )
    new_python: Path | None = option(
        metavar="FILE",
        help="Python interpreter for NEW.",
        show_default="the running interpreter",
        shown_by=HELP_ALL,
    )

    def check(self, *, reports: int, baseline: bool) -> None:
        """Check that options do not contradict one another.

        Args:
            reports: Number of files or directories given.
            baseline: True if a stored baseline is given.

        Raises:
            UsageError: The options contradict one another.
        """
        measures = self.until_sure is not None or self.self_test is not None
        if self.until_sure is not None and self.self_test is not None:
            raise UsageError(
                "--until-sure and --self-test cannot be combined", slug="contradicting-options"
            )
        if self.self_test is not None and (reports or baseline):
            raise UsageError("--self-test takes a command, not reports", slug="wrong-inputs")
        if self.until_sure is not None and (baseline or reports != 2):
            raise UsageError(
                "--until-sure needs two checkouts, BASE and NEW",
                hint="uprof gate base/ new/ --until-sure 'train.py --epochs 1'",
                slug="wrong-inputs",
            )
        if not measures and (self.rounds is not None or self.keep is not None):
            raise UsageError(
                "--rounds and --keep require --until-sure or --self-test",
                slug="option-without-effect",
            )
        if self.until_sure is None and (self.base_python or self.new_python):
            raise UsageError(
                "--base-python and --new-python require --until-sure",
                slug="option-without-effect",
            )

    def judged(
        self,
        checkouts: list[Path],
        metrics: list[str],
        limits: analysis.Limits,
        *,
        noise: NoiseOfRuns | None,
        quiet: bool,
    ) -> tuple[analysis.Verdicts, analysis.Pairs]:
        """Measure two checkouts in lock-step until the verdict is certain."""
        from unified_prof.pipeline import rounds

        base, new = checkouts
        commands = rounds.commands(self.until_sure or "")
        with printing.progress(quiet) as progress:
            return rounds.until_sure(
                base,
                new,
                {name: self.workload(text) for name, text in commands.items()},
                metrics,
                limits,
                noise=noise,
                most=self.rounds or rounds.MAX_ROUNDS,
                messages=_messages(progress, quiet=quiet),
            )

    def workload(self, text: str) -> Workload:
        """Return the workload of a command line, or raise UsageError."""
        from unified_prof.pipeline.rounds import Workload

        try:
            command = tuple(shlex.split(text))
        except ValueError as err:
            raise UsageError(
                f"cannot parse the command {text!r}: {err}", slug="wrong-command"
            ) from None
        if not command:
            raise UsageError(
                "the command is empty",
                hint="for example 'train.py --epochs 1'",
                slug="wrong-command",
            )
        here = sys.executable
        # Not resolved: an interpreter finds its environment by the path it is started with.
        pythons = [
            str(one.absolute()) if one else here for one in (self.base_python, self.new_python)
        ]
        return Workload(command, self.keep, (pythons[0], pythons[1]), self.timeout)


def _messages(progress: Callable[[str], None], *, quiet: bool) -> Messages:
    from unified_prof.pipeline.rounds import Messages

    def relay(text: str) -> None:
        if not quiet:
            sys.stderr.write(text)

    return Messages(progress, relay)


@command(
    "gate",
    epilog="Exit codes: 0 passed; 1 regression; 2 usage error; 3 inconclusive; "
    "5 a run failed or hung; 6 recording unreadable; 7 report missing or unreadable.",
)
def gate(
    *,
    sides: Sides,
    allowed: Allowed,
    rounds: Rounds,
    result: ResultOptions = formats_of(SUFFIXES),
) -> None:
    """Fail if a run is slower or uses more memory than its baseline.

    A regression must exceed both limits, --max-regress and --min-abs, and be statistically
    certain. If GITHUB_STEP_SUMMARY is set, the verdict is appended to that file as Markdown.
    """
    from unified_prof.compare.diff import comparability_warnings

    target, quiet = result.target(SUFFIXES), result.quiet
    limits = allowed.limits()
    if allowed.metrics:
        analysis.check_metrics(allowed.metrics)
    if sides.baseline is None and printing.is_typed("store"):
        # If it is set for a project or machine, it applies only where it is needed.
        raise UsageError("--store requires --baseline", slug="option-without-effect")
    sides.check()
    rounds.check(reports=len(sides.files or []), baseline=sides.baseline is not None)
    if sides.workload and (rounds.until_sure is not None or rounds.self_test is not None):
        raise UsageError(
            "--workload names existing reports: it cannot be combined with --until-sure "
            "or --self-test",
            hint="--until-sure takes several workloads as NAME=COMMAND, one per line",
            slug="contradicting-options",
        )
    if rounds.self_test is not None:
        _self_test(rounds, limits, target.shape, quiet=quiet)
        return
    verdict: analysis.Verdict | analysis.Verdicts
    reader = Reader(sides.convert, quiet, target.file)
    if rounds.until_sure is not None:
        with signals.ended_by_signals():
            verdict, pairs = rounds.judged(
                sides.files or [],
                allowed.metrics,
                limits,
                noise=allowed.given_noise(),
                quiet=quiet,
            )
    elif sides.workload:
        pairs = report_input.load_workloads(report_input.parse_workloads(sides.workload), reader)
        noises = report_input.noises_of(allowed.noise, pairs)
        verdict = analysis.gate_workloads(pairs, allowed.metrics_of(pairs.values()), limits, noises)
    else:
        pairs = {"": sides.load(reader)}
        noise = report_input.noise_of(allowed.noise, pairs[""][1])
        metrics = allowed.metrics_of(pairs.values())
        verdict = analysis.gate(*pairs[""], metrics, limits, noise)
    if isinstance(verdict, analysis.Verdicts) and len(pairs) == 1:
        ((name, only),) = verdict.each.items()
        verdict, pairs = replace(only, effort=verdict.effort), {"": pairs[name]}
    if not quiet:
        for name, pair in pairs.items():
            for doubt in comparability_warnings(*pair):
                printing.print_message(f"uprof: warning: {f'{name}: ' if name else ''}{doubt}")
    labels = {name: (base.label, new.label) for name, (base, new) in pairs.items()}
    end_with_verdict(verdict, labels, target, quiet=quiet)


def end_with_verdict(
    verdict: analysis.Verdict | analysis.Verdicts,
    labels: Mapping[str, tuple[str, str]],
    target: Target,
    *,
    quiet: bool,
) -> NoReturn:
    """Print or write a verdict, add it to the job summary of GitHub Actions, and exit with it.

    Args:
        verdict: Verdict on one workload, or on several.
        labels: Names of both sides of each workload; the name of a single workload is empty.
        target: File and format.
        quiet: Do not print text, since the exit code reports the verdict.

    Raises:
        OutputError: The file or the summary cannot be written.
    """
    from unified_prof.report import operation_difference as documents

    def text(target: Target) -> str:
        if target.shape == "junit":
            return documents.verdict_junit(verdict, labels)
        return target.render_document(
            lambda: printing.json_text(documents.verdict_fields(verdict, labels)),
            lambda: documents.verdict_document(verdict, labels),
        )

    if target.file is not None or not (quiet and target.shape == printing.TEXT):
        target.deliver(text(target))
        if target.file is not None and not quiet:
            printing.print_message(f"{target.file}: {verdict.outcome}")
    if path := os.environ.get("GITHUB_STEP_SUMMARY"):
        try:
            with Path(path).open("a", encoding="utf-8") as summary:
                summary.write(text(Target(None, "markdown", force=False)) + "\n")
        except OSError as err:
            raise OutputError(
                f"cannot write GITHUB_STEP_SUMMARY {path}: {err.strerror}", slug="cannot-write"
            ) from err
    raise click.exceptions.Exit(verdict.exit_code)


def _self_test(rounds: Rounds, limits: analysis.Limits, shape: str, *, quiet: bool) -> None:
    """Run a workload against itself, store its variation, and print the smallest change found."""
    from unified_prof.baselines import noise as learned
    from unified_prof.pipeline import rounds as lock_step

    with printing.progress(quiet) as progress:
        pair, effort = lock_step.with_itself(
            rounds.workload(rounds.self_test or ""),
            rounds.rounds or 6,
            messages=_messages(progress, quiet=True),
        )
    run, noise = pair[0], learned.learn(pair[0])
    # Number of rounds -> smallest change that is usually detected.
    smallest = {count: lock_step.smallest_change(pair, limits, count) for count in (5, 10)}
    seconds_per_round, file = effort.seconds / effort.rounds, learned.save(run, noise)
    if shape == printing.JSON:
        document = {
            "format_version": 2,
            "host": run.facts.get("host"),
            "device": run.facts.get("device"),
            "workload": run.facts.get("workload"),
            "runs": int(noise.degrees) + 1,
            "relative_noise": noise.relative,
            "max_regress": limits.max_regress,
            "smallest_change": {str(count): one for count, one in smallest.items()},
            "seconds_per_round": seconds_per_round,
            "file": str(file),
        }
        printing.put(printing.json_text(document))
        return
    changes = ", ".join(
        f"{_share(one)} in {count} rounds ({count * seconds_per_round:.0f} s)"
        for count, one in smallest.items()
    )
    printing.put(
        f"smallest change that this machine detects: {changes}\n"
        f"{run.facts.get('workload', '?')} on {run.facts.get('device', '?')}: run-to-run variation "
        f"{noise.relative:.1%} (n = {int(noise.degrees) + 1}), saved to {file}\n"
    )


def _share(share: float) -> str:
    """Format a change; above 100 % as a factor."""
    return f"{share:.1%}" if share < 1 else f"{1 + share:,.3g} x" if share < 99 else "> 100 x"
