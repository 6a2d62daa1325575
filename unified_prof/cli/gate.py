"""Command `uprof gate`; with `--until-sure` and `--self-test` it runs the workload itself."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click

from unified_prof.base import streams
from unified_prof.cli import output, workloads
from unified_prof.cli import output as printing
from unified_prof.cli.command import FORMAT, AsJsonFormat, Force, Group, OutputFile, Quiet, option
from unified_prof.cli.gate_sides import (
    SUFFIXES,
    Allowed,
    FormatOption,
    Sides,
    append_summary,
    verdict_text,
    verdicts_text,
)
from unified_prof.errors import UsageError

if TYPE_CHECKING:
    from unified_prof.compare.comparable import Run
    from unified_prof.compare.confidence import Noise
    from unified_prof.compare.gate import Limits, Pairs, Verdict, Verdicts
    from unified_prof.pipeline.rounds import Workload


@dataclass(frozen=True, slots=True)
class Rounds:
    """Options of --until-sure and --self-test."""

    until_sure: Annotated[
        str | None,
        option(
            metavar="COMMAND",
            help="BASE and NEW are checkouts: run this command in both in turn until the "
            "verdict is certain. Takes the arguments of `uprof run`, quoted; for several "
            "workloads one NAME=COMMAND per line.",
        ),
    ] = None
    self_test: Annotated[
        str | None,
        option(
            metavar="COMMAND",
            help=(
                "Run this command several times unchanged, and show the smallest change that "
                "this machine can detect."
            ),
        ),
    ] = None
    rounds: Annotated[
        int | None,
        option(
            min=1,
            help="Maximum runs per side; with --self-test in total.",
            show_default="10; 6 with --self-test",
        ),
    ] = None
    keep: Annotated[
        Path | None,
        option(metavar="DIR", help="Keep the reports of these runs in a new directory."),
    ] = None
    base_python: Annotated[
        Path | None,
        option(
            metavar="FILE",
            help="Python interpreter for BASE, if its package is installed in an environment.",
            show_default="the running interpreter",
        ),
    ] = None
    new_python: Annotated[
        Path | None,
        option(
            metavar="FILE",
            help="Python interpreter for NEW.",
            show_default="the running interpreter",
        ),
    ] = None

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
        """Measure several workloads as `judged` does; see `rounds.until_all_sure`."""
        from unified_prof.pipeline import rounds

        with output.progress_line(enabled=streams.is_terminal() and not quiet) as progress:
            return rounds.until_all_sure(
                base,
                new,
                {name: self._workload(text) for name, text in self.commands().items()},
                metrics,
                limits,
                noise=noise,
                most=self.rounds or rounds.MAX_ROUNDS,
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
        """Measure two checkouts in turn until the verdict is certain; see `rounds.until_sure`."""
        from unified_prof.pipeline import rounds

        with output.progress_line(enabled=streams.is_terminal() and not quiet) as progress:
            return rounds.until_sure(
                base,
                new,
                self._workload(next(iter(self.commands().values()), "")),
                metrics,
                limits,
                noise=noise,
                most=self.rounds or rounds.MAX_ROUNDS,
                progress=progress,
            )

    def learned(self, limits: Limits, *, quiet: bool) -> tuple[Run, Noise, dict[int, float], Path]:
        """Store the measured run-to-run variation; return detectable changes by number of runs."""
        from unified_prof.baselines import noise
        from unified_prof.pipeline import rounds

        with output.progress_line(enabled=streams.is_terminal() and not quiet) as progress:
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
        return Workload(command, self.keep, (pythons[0], pythons[1]))


def register(app: Group) -> None:
    """Register the command."""
    app.command(
        "gate",
        epilog="Exit codes: 0 passed; 1 regression; 2 usage error; 3 inconclusive (too few "
        "samples, or too much variance); 6 recording unreadable; 7 report missing or "
        "unreadable.",
    )(gate)


def gate(
    *,
    context: click.Context,
    sides: Sides,
    allowed: Allowed,
    rounds: Rounds,
    format_: Annotated[FormatOption | None, FORMAT] = None,
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

    file = printing.output_file(output)
    asked = format_ and format_.value
    shape = FormatOption(
        printing.choose_format(context, SUFFIXES, asked=asked, as_json=json_, file=file)
    )
    limits = allowed.limits()
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
        _print_learned_noise(rounds, limits, shape, quiet=quiet)
        return
    several = _gate_several(sides, allowed, rounds, limits, quiet=quiet, output=file)
    if several is not None:
        verdicts, pairs = several
        exit_code = verdicts.exit_code

        def text(shape: FormatOption, to_file: bool = False) -> str:
            return verdicts_text(verdicts, pairs, shape, to_file=to_file)
    else:
        verdict, base, new = _gate_one(sides, allowed, rounds, limits, quiet=quiet, output=file)
        pairs, exit_code = {"": (base, new)}, verdict.exit_code
        labels = (base.label, new.label)

        def text(shape: FormatOption, to_file: bool = False) -> str:
            return verdict_text(verdict, labels, shape, to_file=to_file)

    if not quiet:
        for name, pair in pairs.items():
            for doubt in comparability_warnings(*pair):
                printing.print_message(f"uprof: warning: {f'{name}: ' if name else ''}{doubt}")
    if file is not None:
        printing.write(file, text(shape, to_file=True), force=force)
    elif not (quiet and shape is FormatOption.TEXT):  # the exit code reports it
        printing.put(text(shape), for_people=shape is FormatOption.TEXT)
    append_summary(lambda: text(FormatOption.MARKDOWN))
    raise click.exceptions.Exit(exit_code)


def _gate_one(
    sides: Sides,
    allowed: Allowed,
    rounds: Rounds,
    limits: Limits,
    *,
    quiet: bool,
    output: Path | None,
) -> tuple[Verdict, Run, Run]:
    """Judge one workload from its reports, or by measuring it."""
    from unified_prof.compare import gate as analysis

    if rounds.until_sure is not None:
        base_folder, new_folder = sides.files or []
        return rounds.judged(
            base_folder,
            new_folder,
            allowed.metrics,
            limits,
            noise=allowed.given_noise(),
            quiet=quiet,
        )
    base, new = sides.load(quiet=quiet, output=output)
    noise = workloads.noise(allowed.noise, new)
    metrics = allowed.metrics_of(base, new)
    return analysis.gate(base, new, metrics, limits, noise), base, new


def _gate_several(
    sides: Sides,
    allowed: Allowed,
    rounds: Rounds,
    limits: Limits,
    *,
    quiet: bool,
    output: Path | None,
) -> tuple[Verdicts, Pairs] | None:
    """Judge several workloads; return None if there is only one."""
    if sides.workload:
        from unified_prof.compare.gate import gate_each

        pairs = sides.pairs(quiet=quiet, output=output)
        noises = workloads.noises(allowed.noise, pairs)
        metrics = allowed.metrics_of(*(run for pair in pairs.values() for run in pair))
        return gate_each(pairs, metrics, limits, noises), pairs
    if rounds.until_sure is None or len(rounds.commands()) < 2:
        return None
    base, new = sides.files or []
    return rounds.judged_each(
        base, new, allowed.metrics, limits, noise=allowed.given_noise(), quiet=quiet
    )


def _print_learned_noise(
    rounds: Rounds, limits: Limits, shape: FormatOption, *, quiet: bool
) -> None:
    """Measure the run-to-run variation and print the detectable changes."""
    run, noise, seen, file = rounds.learned(limits, quiet=quiet)
    if shape is FormatOption.JSON:
        document = {
            "format_version": 1,
            "host": run.facts.get("host"),
            "device": run.facts.get("device"),
            "workload": run.facts.get("workload"),
            "runs": int(noise.degrees) + 1,
            "relative_noise": noise.relative,
            "max_regress": limits.max_regress,
            "smallest_regression_seen": {str(count): share for count, share in seen.items()},
            "file": str(file),
        }
        printing.put(printing.json_text(document))
        return
    lines = [
        f"{run.facts.get('workload', '?')} on {run.facts.get('device', '?')}: run-to-run "
        f"variation {noise.relative:.1%} (n = {int(noise.degrees) + 1})",
        f"with a limit of {limits.max_regress:.0%}, a regression is detected from about",
        *(
            f"  {_share(share):>8}  with {count} run{'s' * (count > 1)} per side"
            for count, share in seen.items()
        ),
        f"saved to {file}",
    ]
    printing.put("\n".join(lines) + "\n", for_people=True)


def _share(share: float) -> str:
    """Format a change; above 100 % as a factor."""
    return f"{share:.1%}" if share < 1 else f"{1 + share:,.3g} x" if share < 99 else "> 100 x"
