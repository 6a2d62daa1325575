"""Command `uprof gate`; with `--until-sure` and `--self-test` it runs the workload itself."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from unified_prof.base import signals
from unified_prof.cli import output, workloads
from unified_prof.cli import output as printing
from unified_prof.cli.command import (
    HELP_ALL,
    AsJsonFormat,
    Force,
    Group,
    OutputFile,
    Quiet,
    format_option,
    option,
)
from unified_prof.cli.gate_sides import (
    SUFFIXES,
    Allowed,
    Sides,
    print_verdict,
    verdict_text,
    verdicts_text,
)
from unified_prof.errors import UsageError

if TYPE_CHECKING:
    from unified_prof.compare.comparable import Run
    from unified_prof.compare.confidence import Noise
    from unified_prof.compare.gate import Limits, Pairs, Verdict, Verdicts
    from unified_prof.pipeline.rounds import Messages, Workload


@dataclass(frozen=True, slots=True)
class SelfTest:
    """Results of a self-test."""

    run: Run
    noise: Noise
    # Number of rounds -> smallest change that is usually detected.
    smallest: dict[int, float]
    seconds_per_round: float
    file: Path


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
                "--until-sure and --self-test cannot be combined",
                slug="contradicting-options",
            )
        if self.self_test is not None and (reports or baseline):
            raise UsageError(
                "--self-test takes a command, not reports",
                slug="wrong-inputs",
            )
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
        limits: Limits,
        *,
        noise: Noise | None,
        quiet: bool,
    ) -> tuple[Verdicts, Pairs]:
        """Measure two checkouts in lock-step until the verdict is certain."""
        from unified_prof.pipeline import rounds

        base, new = checkouts
        commands = workloads.commands(self.until_sure or "")
        with output.progress(quiet) as progress:
            return rounds.until_sure(
                base,
                new,
                {name: self._workload(text) for name, text in commands.items()},
                metrics,
                limits,
                noise=noise,
                most=self.rounds or rounds.MAX_ROUNDS,
                messages=_messages(progress, quiet=quiet),
            )

    def learned(self, limits: Limits, *, quiet: bool) -> SelfTest:
        """Store the run-to-run variation; return the smallest changes that are detected."""
        from unified_prof.baselines import noise
        from unified_prof.pipeline import rounds

        with output.progress(quiet) as progress:
            pair, effort = rounds.with_itself(
                self._workload(self.self_test or ""),
                self.rounds or 6,
                messages=_messages(progress, quiet=True),
            )
        run, found = pair[0], noise.learn(pair[0])
        smallest = {count: rounds.smallest_change(pair, limits, count) for count in (5, 10)}
        return SelfTest(
            run, found, smallest, effort.seconds / effort.rounds, noise.save(run, found)
        )

    def _workload(self, text: str) -> Workload:
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


def register(app: Group) -> None:
    """Register the command."""
    app.command(
        "gate",
        epilog="Exit codes: 0 passed; 1 regression; 2 usage error; 3 inconclusive; "
        "5 a run failed or hung; 6 recording unreadable; 7 report "
        "missing or unreadable.",
    )(gate)


def gate(
    *,
    context: click.Context,
    sides: Sides,
    allowed: Allowed,
    rounds: Rounds,
    format_: str | None = format_option(SUFFIXES),
    output: OutputFile = None,
    force: Force = False,
    quiet: Quiet = False,
    json_: AsJsonFormat = False,
) -> None:
    """Fail if a run is slower or uses more memory than its baseline.

    A regression must exceed both limits, --max-regress and --min-abs, and be statistically
    certain. If GITHUB_STEP_SUMMARY is set, the verdict is appended to that file as Markdown.
    """
    from unified_prof.compare import gate as analysis
    from unified_prof.compare.diff import comparability_warnings

    file, shape = printing.destination(context, SUFFIXES, output, format_, json_)
    limits = allowed.limits()
    if allowed.metrics:
        analysis.check_metrics(allowed.metrics)
    source = context.get_parameter_source("store")
    if sides.baseline is None and source is not None and source.name == "COMMANDLINE":
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
        _print_self_test(rounds, limits, shape, quiet=quiet)
        return
    verdicts: Verdicts | None = None
    pairs: Pairs = {}
    if rounds.until_sure is not None:
        with signals.ended_by_signals():
            verdicts, pairs = rounds.judged(
                sides.files or [],
                allowed.metrics,
                limits,
                noise=allowed.given_noise(),
                quiet=quiet,
            )
    elif sides.workload:
        pairs = sides.pairs(quiet=quiet, output=file)
        noises = workloads.noises(allowed.noise, pairs)
        verdicts = analysis.gate_workloads(
            pairs, allowed.metrics_of(pairs.values()), limits, noises
        )
    if verdicts is not None and len(pairs) > 1:
        exit_code = verdicts.exit_code

        def text(shape: str, to_file: bool = False) -> str:
            return verdicts_text(verdicts, pairs, shape, to_file=to_file)
    else:
        if verdicts is not None:
            ((name, verdict),) = verdicts.each.items()
            verdict = replace(verdict, effort=verdicts.effort)
            base, new = pairs[name]
        else:
            verdict, base, new = _gate_one(sides, allowed, limits, quiet=quiet, output=file)
        pairs, exit_code = {"": (base, new)}, verdict.exit_code
        labels = (base.label, new.label)

        def text(shape: str, to_file: bool = False) -> str:
            return verdict_text(verdict, labels, shape, to_file=to_file)

    if not quiet:
        for name, pair in pairs.items():
            for doubt in comparability_warnings(*pair):
                printing.print_message(f"uprof: warning: {f'{name}: ' if name else ''}{doubt}")
    print_verdict(text, shape, file, force=force, quiet=quiet)
    raise click.exceptions.Exit(exit_code)


def _gate_one(
    sides: Sides, allowed: Allowed, limits: Limits, *, quiet: bool, output: Path | None
) -> tuple[Verdict, Run, Run]:
    """Judge one workload from its reports."""
    from unified_prof.compare import gate as analysis

    base, new = sides.load(quiet=quiet, output=output)
    noise = workloads.noise(allowed.noise, new)
    metrics = allowed.metrics_of([(base, new)])
    return analysis.gate(base, new, metrics, limits, noise), base, new


def _print_self_test(rounds: Rounds, limits: Limits, shape: str, *, quiet: bool) -> None:
    """Run a workload against itself and print the smallest detectable change."""
    found = rounds.learned(limits, quiet=quiet)
    run, noise = found.run, found.noise
    if shape == "json":
        document = {
            "format_version": 2,
            "host": run.facts.get("host"),
            "device": run.facts.get("device"),
            "workload": run.facts.get("workload"),
            "runs": int(noise.degrees) + 1,
            "relative_noise": noise.relative,
            "max_regress": limits.max_regress,
            "smallest_change": {str(rounds): one for rounds, one in found.smallest.items()},
            "seconds_per_round": found.seconds_per_round,
            "file": str(found.file),
        }
        printing.put(printing.json_text(document))
        return
    smallest = ", ".join(
        f"{_share(one)} in {count} rounds ({count * found.seconds_per_round:.0f} s)"
        for count, one in found.smallest.items()
    )
    text = (
        f"smallest change that this machine detects: {smallest}\n"
        f"{run.facts.get('workload', '?')} on {run.facts.get('device', '?')}: run-to-run variation "
        f"{noise.relative:.1%} (n = {int(noise.degrees) + 1}), saved to {found.file}\n"
    )
    printing.put(text, for_people=True)


def _share(share: float) -> str:
    """Format a change; above 100 % as a factor."""
    return f"{share:.1%}" if share < 1 else f"{1 + share:,.3g} x" if share < 99 else "> 100 x"
