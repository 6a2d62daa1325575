"""Command `uprof gate`; with `--until-sure` and `--self-test` it runs the workload itself."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from unified_prof.base import signals
from unified_prof.baselines import noise
from unified_prof.baselines.noise import noise_of
from unified_prof.cli import command as cli
from unified_prof.cli import output as printing
from unified_prof.cli.gate_options import FORMATS, MetricOptions, WorkloadOption, end_with_verdict
from unified_prof.cli.output import Printer, ResultOptions
from unified_prof.compare import gate as analysis
from unified_prof.compare.diff import comparability_warnings, diff
from unified_prof.pipeline import report_input

if TYPE_CHECKING:
    from unified_prof.baselines.noise import SelfTest
    from unified_prof.pipeline.rounds import Workload


@dataclass(frozen=True, slots=True)
class Sides:
    """Reports of two runs, or of one run and a baseline."""

    files: list[Path] | None = cli.argument(
        "Reports BASE and NEW; with --baseline only NEW.", "[BASE] NEW", default=None
    )
    more_base: cli.MoreBase = None
    more_new: cli.MoreNew = None
    workload: WorkloadOption = None
    baseline: str | None = cli.option("Compare with this stored baseline.", "NAME")
    store: str | None = cli.rare_option("Baseline store: an SQLite file or a SQLAlchemy URL.")
    convert: cli.Convert = False

    def load(self, reader: report_input.Reader) -> analysis.Pairs:
        """Return the baseline run and the candidate run of each workload.

        Raises UsageError if the arguments do not select a baseline and a candidate, RawFormatError
        if a recording cannot be converted, and StoreError if a report or a baseline cannot be read.
        """
        if self.workload:
            given = report_input.parse_workloads(self.workload)
            return {
                name: (reader.run(base), reader.run(new)) for name, (base, new) in given.items()
            }
        more_base, more_new, files = self.more_base or [], self.more_new or [], self.files or []
        if self.baseline is None:
            cli.refuse(
                len(files) != 2,
                f"gate needs two reports, BASE and NEW, not {len(files)}",
                hint="give both, or only NEW with --baseline NAME",
                slug="wrong-inputs",
            )
            base, new = files
            return {"": (reader.run([base, *more_base]), reader.run([new, *more_new]))}
        from unified_prof.baselines import api

        cli.refuse(
            more_base, "--base cannot be combined with --baseline", slug="option-without-effect"
        )
        cli.refuse(not files, "--baseline needs a report of the candidate", slug="wrong-inputs")
        new_run = reader.run([*files, *more_new])
        return {"": (api.load_baseline(self.baseline, self.store), new_run)}


@dataclass(frozen=True, slots=True)
class Rounds:
    """Options of --until-sure and --self-test."""

    until_sure: str | None = cli.option(
        "BASE and NEW are checkouts: run `uprof run COMMAND` in both, in lock-step, until the "
        "verdict is certain. Several workloads: one NAME=COMMAND per line.",
        "COMMAND",
    )
    self_test: str | None = cli.option(
        "Run this command against itself, and show the smallest change that this machine can "
        "detect.",
        "COMMAND",
    )
    rounds: int | None = cli.rare_option(
        "Maximum number of rounds, 3 or more; each starts both sides anew. [default: 12; 6 with "
        "--self-test]",
        min=1,
    )
    timeout: int = cli.rare_option(
        "Fail if a run makes no progress for this long.", "SECONDS", default=600, min=1
    )
    keep: Path | None = cli.rare_option("Keep the reports of these runs in a new directory.", "DIR")
    base_python: Path | None = cli.rare_option(
        "Python interpreter for BASE, if its package is installed in an environment. [default: "
        "the running interpreter]",
        "FILE",
    )
    new_python: Path | None = cli.rare_option(
        "Python interpreter for NEW. [default: the running interpreter]", "FILE"
    )

    def check(self, sides: Sides) -> None:
        """Check that options do not contradict one another.

        Raises:
            UsageError: They do.
        """
        reports = len(sides.files or [])
        until_sure, self_test = self.until_sure is not None, self.self_test is not None
        others = sides.files or sides.more_base or sides.more_new or sides.baseline
        # If it is set for a project or machine, it applies only where it is needed.
        needs_baseline = sides.baseline is None and printing.is_typed("store")
        cli.refuse(needs_baseline, "--store requires --baseline", slug="option-without-effect")
        cli.refuse(
            sides.workload and others,
            "--workload cannot be combined with BASE, NEW, --base, --new and --baseline",
            hint="use --workload NAME=BASE:NEW for each workload",
        )
        cli.refuse(until_sure and self_test, "--until-sure and --self-test cannot be combined")
        cli.refuse(
            self_test and (reports or sides.baseline is not None),
            "--self-test takes a command, not reports",
            slug="wrong-inputs",
        )
        cli.refuse(
            until_sure and (sides.baseline is not None or (reports != 2 and not sides.workload)),
            "--until-sure needs two checkouts, BASE and NEW",
            hint="uprof gate base/ new/ --until-sure 'train.py --epochs 1'",
            slug="wrong-inputs",
        )
        cli.refuse(
            not (until_sure or self_test) and (self.rounds is not None or self.keep is not None),
            "--rounds and --keep require --until-sure or --self-test",
            slug="option-without-effect",
        )
        cli.refuse(
            not until_sure and (self.base_python or self.new_python),
            "--base-python and --new-python require --until-sure",
            slug="option-without-effect",
        )
        cli.refuse(
            sides.workload and (until_sure or self_test),
            "--workload names existing reports: it cannot be combined with --until-sure "
            "or --self-test",
            hint="--until-sure takes several workloads as NAME=COMMAND, one per line",
        )

    def judge(
        self, checkouts: Sequence[Path], allowed: MetricOptions, printer: Printer
    ) -> tuple[analysis.Verdicts, analysis.Pairs]:
        """Measure two checkouts in lock-step until the verdict is certain."""
        from unified_prof.pipeline import rounds

        def relay(text: str) -> None:
            if not printer.quiet:
                sys.stderr.write(text)

        base, new = checkouts
        commands = rounds.commands(self.until_sure or "")
        with signals.ended_by_signals(), printer.progress() as progress:
            return rounds.until_sure(
                base,
                new,
                {name: self.workload(text) for name, text in commands.items()},
                allowed.metrics,
                allowed.limits(),
                noise=None if allowed.noise is None else analysis.parse_noise(allowed.noise),
                most=self.rounds or rounds.MAX_ROUNDS,
                messages=rounds.Messages(progress, relay),
            )

    def test(self, limits: analysis.Limits, printer: Printer) -> SelfTest:
        """Run a workload against itself, and store its run-to-run variation."""
        from unified_prof.pipeline import rounds

        with printer.progress() as progress:
            pair, effort = rounds.with_itself(
                self.workload(self.self_test or ""),
                self.rounds or 6,
                messages=rounds.Messages(progress),
            )
        # Number of rounds -> smallest change that is usually detected.
        smallest = {count: rounds.smallest_change(pair, limits, count) for count in (5, 10)}
        seconds = effort.seconds / effort.rounds
        return noise.store_self_test(pair[0], smallest, seconds, limits.max_regress)

    def workload(self, text: str) -> Workload:
        """Return the workload of a command line, or raise UsageError."""
        from unified_prof.pipeline.rounds import Workload, parse_command

        here = sys.executable
        # Not resolved: an interpreter finds its environment by the path it is started with.
        pythons = [
            str(one.absolute()) if one else here for one in (self.base_python, self.new_python)
        ]
        return Workload(parse_command(text), self.keep, (pythons[0], pythons[1]), self.timeout)


@cli.command(
    "gate",
    epilog="Exit codes: 0 passed; 1 regression; 2 usage error; 3 inconclusive; "
    "5 a run failed or hung; 6 recording unreadable; 7 report missing or unreadable.",
)
def gate(
    *,
    sides: Sides,
    allowed: MetricOptions,
    rounds: Rounds,
    result: ResultOptions = cli.formats_of(*FORMATS),
) -> None:
    """Fail if a run is slower or uses more memory than its baseline.

    A regression must exceed both limits, --max-regress and --min-abs, and be statistically
    certain. If GITHUB_STEP_SUMMARY is set, the verdict is appended to that file as Markdown.
    """
    target, printer, limits = result.target(), result.printer, allowed.limits()
    if allowed.metrics:
        analysis.check_metrics(allowed.metrics)
    rounds.check(sides)
    if rounds.self_test is not None:
        tested = rounds.test(limits, printer)
        Printer(json_=target.shape == printing.JSON).show(tested.fields, tested.lines())
        return
    if rounds.until_sure is not None:
        found, pairs = rounds.judge(sides.files or [], allowed, printer)
    else:
        pairs = sides.load(report_input.Reader(printer, sides.convert, target.file))
        noises = {name: noise_of(allowed.noise, new) for name, (_, new) in pairs.items()}
        metrics = allowed.metrics or analysis.default_metrics(pairs.values())
        found = analysis.gate_workloads(pairs, metrics, limits, noises)
    verdict: analysis.Verdict | analysis.Verdicts = found
    if len(pairs) == 1:
        ((name, only),) = found.each.items()
        verdict, pairs = replace(only, effort=found.effort), {"": pairs[name]}
    for name, pair in pairs.items():
        for doubt in comparability_warnings(*pair):
            printer.warning(f"{name}: {doubt}" if name else doubt)
    labels = {name: (base.label, new.label) for name, (base, new) in pairs.items()}
    worse = [name for name, one in found.each.items() if one.outcome == "regression"]
    causes = {name: diff(*(pairs.get(name) or pairs[""])) for name in worse}
    end_with_verdict(verdict, labels, target, causes=causes, quiet=result.quiet)
