"""`uprof gate`: whether a change may pass, for CI."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unified_prof.analysis.compare.thresholds import absolute, fraction, told_noise
from unified_prof.cli import converting, printing, thresholds, workloads
from unified_prof.cli import shape as shapes
from unified_prof.cli.converting import Convert
from unified_prof.cli.gate_rounds import Rounds
from unified_prof.cli.option_groups import with_groups
from unified_prof.cli.options import AsJsonFormat, Force, Noise, Quiet
from unified_prof.cli.workloads import WorkloadOption
from unified_prof.errors import OutputError, UsageError

if TYPE_CHECKING:
    from unified_prof.analysis.compare.between import Noise as NoiseOfRuns
    from unified_prof.analysis.compare.comparable import Run
    from unified_prof.analysis.compare.gate import Limits, Verdict
    from unified_prof.analysis.compare.workloads import Pairs, Verdicts


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
        from unified_prof.baselines import keep

        if not files:
            raise UsageError(
                "the gate takes the reports of the new run beside --baseline", slug="wrong-inputs"
            )
        new_run = self._run([*files, *more_new], quiet, output)
        return keep.load(self.baseline, self.store), new_run

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
        from unified_prof.analysis.compare.gate import Limits

        time_ns, size_bytes = absolute(self.min_abs or [])
        limits = Limits(max_regress=fraction(self.max_regress))
        return replace(
            limits,
            min_abs_ns=limits.min_abs_ns if time_ns is None else time_ns,
            min_abs_bytes=limits.min_abs_bytes if size_bytes is None else size_bytes,
        )


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command(
        "gate",
        epilog="Exit code: 0 fine, 1 a regression, 3 inconclusive (too few samples, or they "
        "scatter too much), 2 wrong use, 6 a recording is unreadable, 7 no report or one "
        "that cannot be read.",
    )(with_groups(gate))


def gate(
    *,
    context: typer.Context,
    sides: Sides,
    allowed: Allowed,
    rounds: Rounds,
    format_: Annotated[
        FormatOption | None,
        typer.Option(
            "--format", help="How to print the verdict.", show_default="by -o's ending, or text"
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write to a file.")
    ] = None,
    force: Force = False,
    quiet: Quiet = False,
    json_: AsJsonFormat = False,
) -> None:
    """Refuse a run that is slower, or takes more memory, than a base allows.

    It is refused only if it exceeds both limits and the runs leave no doubt. Where
    GITHUB_STEP_SUMMARY is set, the verdict is appended to that file as Markdown.
    """
    from unified_prof.analysis.compare import gate as analysis
    from unified_prof.analysis.compare.doubts import doubts

    file = shapes.file_of(output)
    asked = format_ and format_.value
    shape = FormatOption(shapes.chosen(context, SUFFIXES, asked=asked, as_json=json_, file=file))
    limits = allowed.limits()
    analysis.check_metrics(allowed.metrics)
    source = context.get_parameter_source("store")
    if sides.baseline is None and source is not None and source.name == "COMMANDLINE":
        # As a setting of the project or the machine it may stand for the times it is needed.
        raise UsageError("--store is only used with --baseline", slug="option-without-effect")
    sides.check()
    rounds.check(reports=len(sides.files or []), baseline=sides.baseline is not None)
    if sides.workload and (rounds.until_sure is not None or rounds.self_test is not None):
        raise UsageError(
            "--workload names reports that are there: it is not used with --until-sure or "
            "--self-test",
            hint="--until-sure takes several workloads, NAME=COMMAND, on a line each",
            slug="contradicting-options",
        )
    if rounds.self_test is not None:
        _say_learned(rounds, limits, shape, quiet=quiet)
        return
    several = _several(sides, allowed, rounds, limits, quiet=quiet, output=file)
    if several is not None:
        verdicts, pairs = several
        exit_code = verdicts.exit_code

        def text(shape: FormatOption, to_file: bool = False) -> str:
            return verdicts_text(verdicts, pairs, shape, to_file=to_file)
    else:
        verdict, base, new = _one(sides, allowed, rounds, limits, quiet=quiet, output=file)
        pairs, exit_code = {"": (base, new)}, verdict.exit_code
        labels = (base.label, new.label)

        def text(shape: FormatOption, to_file: bool = False) -> str:
            return verdict_text(verdict, labels, shape, to_file=to_file)

    if not quiet:
        for name, pair in pairs.items():
            for doubt in doubts(*pair):
                printing.say(f"uprof: warning: {f'{name}: ' if name else ''}{doubt}")
    if file is not None:
        printing.write(file, text(shape, to_file=True), force=force)
    elif not (quiet and shape is FormatOption.TEXT):  # then the exit code says it
        printing.put(text(shape), for_people=shape is FormatOption.TEXT)
    append_summary(lambda: text(FormatOption.MARKDOWN))
    raise typer.Exit(exit_code)


def _one(
    sides: Sides,
    allowed: Allowed,
    rounds: Rounds,
    limits: Limits,
    *,
    quiet: bool,
    output: Path | None,
) -> tuple[Verdict, Run, Run]:
    """Judge one workload: measured by the gate itself, or by its reports."""
    from unified_prof.analysis.compare import gate as analysis

    if rounds.until_sure is not None:
        base_folder, new_folder = sides.files or []
        return rounds.judged(
            base_folder, new_folder, allowed.metrics, limits, noise=allowed.told(), quiet=quiet
        )
    base, new = sides.load(quiet=quiet, output=output)
    noise = thresholds.noise(allowed.noise, new)
    return analysis.gate(base, new, allowed.metrics, limits, noise), base, new


def _several(
    sides: Sides,
    allowed: Allowed,
    rounds: Rounds,
    limits: Limits,
    *,
    quiet: bool,
    output: Path | None,
) -> tuple[Verdicts, Pairs] | None:
    """Judge several workloads; None: there are not several."""
    if sides.workload:
        from unified_prof.analysis.compare.workloads import gate_each

        pairs = sides.pairs(quiet=quiet, output=output)
        noises = workloads.noises(allowed.noise, pairs)
        return gate_each(pairs, allowed.metrics, limits, noises), pairs
    if rounds.until_sure is None or len(rounds.commands()) < 2:
        return None
    base, new = sides.files or []
    return rounds.judged_each(base, new, allowed.metrics, limits, noise=allowed.told(), quiet=quiet)


def _say_learned(rounds: Rounds, limits: Limits, shape: FormatOption, *, quiet: bool) -> None:
    """Learn what runs differ by here, and print what can be seen."""
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
        f"{run.facts.get('workload', '?')} on {run.facts.get('device', '?')}: runs differ by "
        f"{noise.relative:.1%} ({int(noise.degrees) + 1} runs)",
        f"a regression above {limits.max_regress:.0%} is seen from about",
        *(
            f"  {_share(share):>8}  with {count} run{'s' * (count > 1)} a side"
            for count, share in seen.items()
        ),
        f"kept in {file}",
    ]
    printing.put("\n".join(lines) + "\n", for_people=True)


def _share(share: float) -> str:
    """Return a change in words; above twice the time, per cent are hard to read."""
    return f"{share:.1%}" if share < 1 else f"{1 + share:,.3g} x" if share < 99 else "> 100 x"


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
    from unified_prof.report import workloads as shown

    if shape is FormatOption.JSON:
        return printing.json_text(shown.document(verdicts, pairs))
    if shape is FormatOption.MARKDOWN:
        return shown.as_markdown(verdicts, pairs)
    if shape is FormatOption.JUNIT:
        return shown.junit(verdicts, pairs)
    width, color = (None, False) if to_file else printing.terminal()
    return shown.text(verdicts, width=width, color=color)


def verdict_text(
    verdict: Verdict, labels: tuple[str, str], shape: FormatOption, *, to_file: bool = False
) -> str:
    """Return the verdict on (base, new) in one of the formats."""
    from unified_prof.report import comparison

    if shape is FormatOption.JSON:
        return printing.json_text(comparison.gate_document(verdict, *labels))
    if shape is FormatOption.MARKDOWN:
        return comparison.gate_markdown(verdict, *labels)
    if shape is FormatOption.JUNIT:
        return comparison.gate_junit(verdict, *labels)
    width, color = (None, False) if to_file else printing.terminal()
    return comparison.gate_text(verdict, width=width, color=color)


def _append(path: Path, text: str) -> None:
    try:
        with path.open("a", encoding="utf-8") as summary:
            summary.write(text + "\n")
    except OSError as err:
        raise OutputError(
            f"GITHUB_STEP_SUMMARY {path} cannot be written: {err.strerror}", slug="cannot-write"
        ) from err
