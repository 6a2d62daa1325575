"""Commands that compare two runs: `diff` shows the changes, `gate` gives a verdict.

With `--until-sure` and `--self-test`, `gate` runs the workload itself.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NoReturn

import click

from unified_prof.base import signals
from unified_prof.baselines.noise import noise_of, store_self_test
from unified_prof.cli import command as cli
from unified_prof.cli import output as printing
from unified_prof.cli.output import Printer, ResultOptions, Target
from unified_prof.compare import diff as comparison
from unified_prof.compare import gate as analysis
from unified_prof.compare.comparable import PEAK, TIMES
from unified_prof.errors import OutputError, UsageError, system_errors
from unified_prof.pipeline.report_input import (
    Reader,
    Side,
    WorkloadPairs,
    parse_workloads,
    with_report_hint,
)

if TYPE_CHECKING:
    from unified_prof.baselines.noise import SelfTest
    from unified_prof.compare.operation_changes import By
    from unified_prof.pipeline.rounds import Workload
    from unified_prof.report.document import Document


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
    causes: Mapping[str, comparison.Difference] | None = None,
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

    def load(self, reader: Reader) -> analysis.Pairs:
        """Return the baseline run and the candidate run of each workload.

        Raises UsageError if the arguments do not select a baseline and a candidate, RawFormatError
        if a recording cannot be converted, and StoreError if a report or a baseline cannot be read.
        """
        if self.workload:
            given = parse_workloads(self.workload)
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
        return store_self_test(pair[0], smallest, seconds, limits.max_regress)

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
        pairs = sides.load(Reader(printer, sides.convert, target.file))
        noises = {name: noise_of(allowed.noise, new) for name, (_, new) in pairs.items()}
        metrics = allowed.metrics or analysis.default_metrics(pairs.values())
        found = analysis.gate_workloads(pairs, metrics, limits, noises)
    verdict: analysis.Verdict | analysis.Verdicts = found
    if len(pairs) == 1:
        ((name, only),) = found.each.items()
        verdict, pairs = replace(only, effort=found.effort), {"": pairs[name]}
    for name, pair in pairs.items():
        for doubt in comparison.comparability_warnings(*pair):
            printer.warning(f"{name}: {doubt}" if name else doubt)
    labels = {name: (base.label, new.label) for name, (base, new) in pairs.items()}
    worse = [name for name, one in found.each.items() if one.outcome == "regression"]
    causes = {name: comparison.diff(*(pairs.get(name) or pairs[""])) for name in worse}
    end_with_verdict(verdict, labels, target, causes=causes, quiet=result.quiet)


_By = Literal["operation", "line", "module", "class", "shape", "kernel", "annotation"]
# Breakdowns that tracked workloads have; device recordings have all others.
_BY_SAMPLES: Final[tuple[By, ...]] = ("operation", "line", "module", "annotation")
_DEVICE_ONLY = ("csv", "html")  # Formats that only comparisons of device recordings have.


@cli.command(
    "diff",
    epilog="Exit codes: 0 success; 2 usage error (reports that cannot be compared); 6 "
    "recording unreadable; 7 report missing or unreadable. Use `uprof gate` for a verdict.",
)
def diff(
    base: Path | None = cli.argument("Baseline: a report or run directory.", "BASE", default=None),
    new: Path | None = cli.argument("Candidate: a report or run directory.", "NEW", default=None),
    more_base: cli.MoreBase = None,
    more_new: cli.MoreNew = None,
    workload: WorkloadOption = None,
    capture: Path | None = cli.rare_option(
        "Report in which the CUDA graphs that both runs replay were captured; their kernels are "
        "attributed to the operations recorded there.",
        "--with CAPTURE",
    ),
    base_capture: Path | None = cli.rare_option(
        "Like --with, for the baseline only.", "--base-with CAPTURE"
    ),
    new_capture: Path | None = cli.rare_option(
        "Like --with, for the candidate only.", "--new-with CAPTURE"
    ),
    by: _By = cli.option("Breakdown of the changes.", default="operation"),
    top: int = cli.option("Number of rows per table.", default=20, min=1),
    everything: bool = cli.flag("Also show unchanged and inconclusive rows.", "--all"),
    result: ResultOptions = cli.formats_of(
        "text",
        "json",
        "csv",
        "markdown",
        "html",
        help="Output format; json and csv have all rows; csv and html need recordings of device "
        "work.",
    ),
    noise: cli.Noise = None,
    convert: cli.Convert = False,
    full_names: cli.FullNames = False,
) -> None:
    """Compare two runs operation by operation.

    Operations of tracked workloads are matched by module path, source line, name and order, so
    inserted and removed operations do not shift the others. Device recordings (msprof databases of
    any vendor) are compared at several levels: step, parts of the step, classes of kernels,
    operations by name and shape, kernels. For several recordings per side, such as a directory of
    ranks, figures are the mean over devices.
    """
    target = result.target()
    captures = base_capture or capture, new_capture or capture
    cli.refuse(
        capture is not None and (base_capture or new_capture),
        "--with applies to both runs",
        hint="use --base-with and --new-with for one of them",
    )
    printer = Printer(result.quiet or not target.is_text)
    how = _Shown(
        target, Reader(printer, convert, target.file), by, top, everything, noise, captures
    )
    if workload:
        cli.refuse(
            target.shape in _DEVICE_ONLY,
            f"--format {target.shape} supports one comparison, not several workloads",
            hint="use text, json or markdown, or compare each workload separately",
        )
        cli.refuse(
            any(captures),
            "--with supports one comparison, not several workloads",
            hint="compare each workload separately",
        )
        cli.refuse(
            base or new or more_base or more_new,
            "--workload cannot be combined with BASE, NEW, --base and --new",
            hint="use --workload NAME=BASE:NEW for each workload",
        )
        found = _compare_each(parse_workloads(workload), how)
    elif base is None or new is None:
        raise UsageError(
            "diff needs two reports, BASE and NEW", hint="uprof diff base new", slug="wrong-inputs"
        )
    else:
        found = _compare([base, *(more_base or [])], [new, *(more_new or [])], how)
    text = found.text or target.render(found.fields, found.document, full_names=full_names)
    target.deliver(text, note=not result.quiet)
    for warning in () if target.is_text else found.warnings:
        result.printer.warning(warning)


@dataclass(frozen=True, slots=True)
class _Shown:
    """Selection and presentation of a comparison."""

    target: Target
    reader: Reader
    by: _By
    top: int
    everything: bool
    noise: str | None
    # Reports in which the replayed graphs of each side were captured.
    captures: tuple[Path | None, Path | None]


@dataclass(frozen=True, slots=True)
class _Comparison:
    """A comparison and its output: data for JSON, a document, or text in another format."""

    fields: Callable[[], dict[str, Any]]
    document: Callable[[], Document]
    warnings: Sequence[str]
    # Text in a format that documents do not support, such as CSV; None otherwise.
    text: str | None = None


def _compare_each(given: WorkloadPairs, how: _Shown) -> _Comparison:
    """Compare several workloads: overall change, then each workload."""
    from unified_prof.report import operation_difference

    found = {name: _compare(*sides, how) for name, sides in given.items()}
    pairs = {
        name: (how.reader.run(base), how.reader.run(new)) for name, (base, new) in given.items()
    }
    noises = {name: noise_of(how.noise, new) for name, (_, new) in pairs.items()}
    means = {metric: analysis.compare_workloads(pairs, metric, noises) for metric in (*TIMES, PEAK)}
    together = {metric: mean for metric, mean in means.items() if mean is not None}
    return _Comparison(
        lambda: operation_difference.differences_fields(
            {name: one.fields() for name, one in found.items()}, together
        ),
        lambda: operation_difference.differences_document(
            {name: one.document() for name, one in found.items()}, together
        ),
        [f"{name}: {one}" for name, each in found.items() for one in each.warnings],
    )


def _compare(base: Sequence[Path], new: Sequence[Path], how: _Shown) -> _Comparison:
    from unified_prof.compare import device_diff
    from unified_prof.report import device_documents
    from unified_prof.report.formats import DeviceRequest

    reader = how.reader
    before, after = reader.side(base), reader.side(new)
    with with_report_hint(*before.given, *after.given):
        first, second = (one and reader.reports(one, several=False).path for one in how.captures)
        found = device_diff.diff_recordings(
            before.reports,
            after.reports,
            (before.label, after.label),
            None if how.noise is None else analysis.parse_noise(how.noise),
            (first, second),
        )
    if found is None:
        if any(how.captures):
            raise device_diff.without_replays()
        return _compare_samples(before, after, how)
    if how.by == "annotation":
        raise UsageError(
            "--by annotation needs tracked workloads; these reports are device recordings",
            hint="use --by operation, line, module, class, shape or kernel; or uprof report "
            "--by annotation for one recording",
            slug="no-breakdown",
        )
    shown, text = DeviceRequest(how.by, how.top, how.everything), None
    if how.target.shape == "csv":
        text = device_documents.device_csv(found)
    elif how.target.shape == "html":
        text = device_documents.device_page(found, shown)
    return _Comparison(
        lambda: device_documents.device_fields(found),
        lambda: device_documents.device_document(found, shown),
        found.warnings,
        text,
    )


def _compare_samples(before: Side, after: Side, how: _Shown) -> _Comparison:
    from unified_prof.report import operation_difference

    cli.refuse(
        how.target.shape in _DEVICE_ONLY,
        f"--format {how.target.shape} needs two recordings of device work: these reports are "
        "of tracked workloads, or of the host only",
        hint="use --format text, json or markdown",
        slug="unknown-format",
    )
    by = next((one for one in _BY_SAMPLES if one == how.by), None)
    if by is None:
        raise UsageError(
            f"--by {how.by} needs recordings of device work",
            hint="use --by operation, line, module or annotation",
            slug="no-breakdown",
        )
    runs = before.run(), after.run()
    for run in runs:
        is_empty = not len(run.operations) and not run.sizes and not run.totals
        cli.refuse(is_empty, f"{run.label} is empty: nothing to compare", slug="empty-report")
    found = comparison.diff(*runs, by=by, noise=noise_of(how.noise, runs[1]))
    return _Comparison(
        lambda: operation_difference.difference_fields(found),
        lambda: operation_difference.difference_document(
            found, top=how.top, everything=how.everything
        ),
        found.warnings,
    )
