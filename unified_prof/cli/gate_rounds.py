"""`uprof gate --until-sure` and `--self-test`: the gate measures by itself."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unified_prof import streams
from unified_prof.cli import printing, workloads
from unified_prof.errors import UsageError

if TYPE_CHECKING:
    from unified_prof.analysis.compare.between import Noise
    from unified_prof.analysis.compare.comparable import Run
    from unified_prof.analysis.compare.gate import Limits, Verdict
    from unified_prof.analysis.compare.workloads import Pairs, Verdicts
    from unified_prof.pipeline.rounds import Workload


@dataclass(frozen=True, slots=True)
class Rounds:
    """What the gate runs by itself."""

    until_sure: Annotated[
        str | None,
        typer.Option(
            metavar="COMMAND",
            help="BASE and NEW are checkouts: run this in both in turn until the verdict is sure. "
            "What `uprof run` takes, in quotes; several workloads stand on a line each, "
            "NAME=COMMAND.",
        ),
    ] = None
    self_test: Annotated[
        str | None,
        typer.Option(
            metavar="COMMAND",
            help="Run this several times, unchanged: how small a change is seen on this machine?",
        ),
    ] = None
    rounds: Annotated[
        int | None,
        typer.Option(
            min=1, help="Runs a side at most; of --self-test all.", show_default="10; 6 to learn"
        ),
    ] = None
    keep: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Keep the reports of these runs in a new folder."),
    ] = None
    base_python: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Interpreter to run BASE with, where its package is installed in an environment.",
            show_default="this one",
        ),
    ] = None
    new_python: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Interpreter to run NEW with.", show_default="this one"),
    ] = None

    def check(self, *, reports: int, baseline: bool) -> None:
        """Refuse what makes no sense together.

        Args:
            reports: How many files or folders are named.
            baseline: Whether a stored baseline is.

        Raises:
            UsageError: what does not.
        """
        measures = self.until_sure is not None or self.self_test is not None
        if self.until_sure is not None and self.self_test is not None:
            raise UsageError(
                "--until-sure and --self-test are two ways to use the gate: name one",
                slug="contradicting-options",
            )
        if self.self_test is not None and (reports or baseline):
            raise UsageError(
                "--self-test compares nothing: it takes a command, and no reports",
                slug="wrong-inputs",
            )
        if self.until_sure is not None and (baseline or reports != 2):
            raise UsageError(
                "--until-sure takes two checkouts, BASE and NEW",
                hint="uprof gate base/ new/ --until-sure 'train.py --epochs 1'",
                slug="wrong-inputs",
            )
        if not measures and (self.rounds is not None or self.keep is not None):
            raise UsageError(
                "--rounds and --keep are used with --until-sure and --self-test",
                slug="option-without-effect",
            )

        if self.until_sure is None and (self.base_python or self.new_python):
            raise UsageError(
                "--base-python and --new-python are used with --until-sure",
                slug="option-without-effect",
            )

    def commands(self) -> dict[str, str]:
        """Return the workloads of --until-sure by name."""
        return workloads.commands(self.until_sure or "")

    def judged_each(
        self,
        base: Path,
        new: Path,
        metrics: list[str],
        limits: Limits,
        *,
        noise: Noise | None,
        quiet: bool,
    ) -> tuple[Verdicts, Pairs]:
        """Do what `judged` does with several workloads; see `rounds.until_all_sure`."""
        from unified_prof.pipeline import rounds

        with printing.progress_line(enabled=streams.is_terminal() and not quiet) as progress:
            return rounds.until_all_sure(
                base,
                new,
                {name: self._workload(text) for name, text in self.commands().items()},
                metrics,
                limits,
                noise=noise,
                most=self.rounds or rounds.MOST_ROUNDS,
                progress=progress,
            )

    def judged(
        self,
        base: Path,
        new: Path,
        metrics: list[str],
        limits: Limits,
        *,
        noise: Noise | None,
        quiet: bool,
    ) -> tuple[Verdict, Run, Run]:
        """Measure two checkouts in turn until the verdict is sure; see `rounds.until_sure`."""
        from unified_prof.pipeline import rounds

        with printing.progress_line(enabled=streams.is_terminal() and not quiet) as progress:
            return rounds.until_sure(
                base,
                new,
                self._workload(next(iter(self.commands().values()), "")),
                metrics,
                limits,
                noise=noise,
                most=self.rounds or rounds.MOST_ROUNDS,
                progress=progress,
            )

    def learned(self, limits: Limits, *, quiet: bool) -> tuple[Run, Noise, dict[int, float], Path]:
        """Learn how runs differ, keep it, and say what can be seen with so many runs a side."""
        from unified_prof.baselines import noise
        from unified_prof.pipeline import rounds

        with printing.progress_line(enabled=streams.is_terminal() and not quiet) as progress:
            run = rounds.several(
                self._workload(self.self_test or ""), self.rounds or 6, progress=progress
            )
        found = noise.learn(run)
        file = noise.save(run, found)
        return (
            run,
            found,
            {count: rounds.seen(found, limits, count) for count in (1, 3, 5, 10)},
            file,
        )

    def _workload(self, text: str) -> Workload:
        from unified_prof.pipeline.rounds import Workload

        try:
            command = tuple(shlex.split(text))
        except ValueError as err:
            raise UsageError(
                f"the command {text!r} cannot be read: {err}", slug="wrong-command"
            ) from None
        if not command:
            raise UsageError(
                "the command is empty",
                hint="for example 'train.py --epochs 1'",
                slug="wrong-command",
            )
        here = sys.executable
        # Not resolved: an interpreter knows its environment by the name that it is started by.
        pythons = [
            str(one.absolute()) if one else here for one in (self.base_python, self.new_python)
        ]
        return Workload(command, self.keep, (pythons[0], pythons[1]))
