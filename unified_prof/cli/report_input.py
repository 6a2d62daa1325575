"""Input of the commands that read reports: `--convert`, sides of a comparison, workloads."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from unified_prof.cli import output as printing
from unified_prof.cli.command import HELP_ALL, option
from unified_prof.errors import OutputError, UsageError
from unified_prof.pipeline import rank_runs

if TYPE_CHECKING:
    from unified_prof.cluster.overview import Overview
    from unified_prof.compare.comparable import Run
    from unified_prof.compare.confidence import Noise
    from unified_prof.compare.gate import Noises, Pairs
    from unified_prof.explain.api import Opened
    from unified_prof.recording.source import Missing
    from unified_prof.report.formats import Format, ReportRequest

# Output formats of Flight Recorder dumps.
_DUMP_FORMATS = ("text", "markdown", "json")
# Maximum number of ranks whose own reports follow the summary of the run.
_MAX_RANK_REPORTS = 4

Convert = Annotated[
    bool,
    option(
        "--convert",
        help="Also accept recordings of other profilers; reports are cached in ~/.cache/uprof.",
    ),
]


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a comparison."""

    # Paths as the user gave them.
    given: tuple[Path, ...]
    # Reports to read instead.
    reports: tuple[Path, ...]
    # True if reports were converted from recordings.
    made: bool

    @property
    def label(self) -> str:
        """Name shown for this side."""
        return ", ".join(map(str, self.given))

    def run(self) -> Run:
        """Load the run.

        Raises:
            UprofError: Same as `compare.runs.load`.
        """
        from unified_prof.compare import runs

        with printing.with_convert_hint(*self.given):
            run = runs.load(self.reports)
        return replace(run, label=self.label) if self.made else run


@dataclass(frozen=True, slots=True)
class ReportInput:
    """Reports to read for a path that the user gave."""

    # A report, or a directory of reports.
    path: Path
    # Reports that are expected but cannot be read.
    missing: tuple[Missing, ...] = ()
    # True if the reports were converted from recordings.
    is_converted: bool = False


@dataclass(frozen=True, slots=True)
class Reader:
    """How the paths that the user gave are read."""

    # If True, recordings are converted; otherwise paths are read as they are.
    convert: bool
    # Print errors only.
    quiet: bool
    # File that will be written; never one of the recordings, not even with --force.
    output: Path | None = None

    def reports(self, path: Path, *, several: bool = True) -> ReportInput:
        """Return the reports to read for `path`, and print what was converted.

        Args:
            path: Path as the user gave it.
            several: If True, a directory of several recordings is accepted.

        Raises:
            OutputError: The output is one of the recordings.
            UprofError: Same as `pipeline.cache.reports_of`.
        """
        if not self.convert:
            return ReportInput(path)
        from unified_prof.pipeline import cache  # 80 ms that reading a report does not need

        note = printing.say_unless(self.quiet, "note")
        with printing.progress(self.quiet) as progress:
            ready = cache.reports_of(path, several=several, progress=progress, note=note)
        _refuse_recording(self.output, (path, *(found.path for found, _ in ready.converted)))
        for found, report in ready.converted:
            note(f"{found.path} is {found.source.title}; its report is {report}")
        return ReportInput(ready.path, ready.missing, is_converted=bool(ready.converted))

    @contextmanager
    def ranks(self, path: Path, *, needed: bool = False) -> Iterator[Overview | None]:
        """Yield the ranks of a directory as one run, see `rank_runs.open_ranks`.

        Args:
            path: Directory or file.
            needed: If True, two recordings of one rank are an error.
        """
        note = printing.say_unless(self.quiet, "hint")
        with ExitStack() as stack:
            with printing.progress(self.quiet) as progress:
                overview = stack.enter_context(
                    rank_runs.open_ranks(path, progress=progress, note=note, needed=needed)
                )
            yield overview

    def side(self, paths: Sequence[Path]) -> Side:
        """Return one side of a comparison, labelled with the paths that the user gave.

        Raises:
            UprofError: Same as `reports`; also if a path is a cluster summary.
        """
        from unified_prof.cluster.rank_partial import is_run_directory

        for path in paths:
            if is_run_directory(path):
                raise UsageError(
                    f"{path} is the summary of a cluster run, not the report of one process",
                    hint="compare two of them with `uprof cluster diff` or `uprof cluster gate`",
                    slug="summary-of-a-cluster",
                )
        ready = [self.reports(path, several=False) for path in paths]
        return Side(
            tuple(paths), tuple(one.path for one in ready), any(one.is_converted for one in ready)
        )

    def run(self, paths: Sequence[Path]) -> Run:
        """Load a run from reports or recordings.

        Raises:
            UprofError: Same as `compare.runs.load` and `side`.
        """
        return self.side(paths).run()


def _refuse_recording(output: Path | None, recordings: Iterable[Path]) -> None:
    if output is None or not output.is_file():
        return
    for recording in recordings:
        if recording.is_file() and output.samefile(recording):
            raise OutputError(
                f"{output} is the recording itself and is never overwritten",
                hint="choose another file",
                slug="not-replaced",
            )


@dataclass(frozen=True, slots=True)
class RenderedReport:
    """A run rendered in one format."""

    content: str | bytes
    # Description of what could not be read; empty if everything was read.
    missing: str
    # True if it shows only the multi-rank run, without reports of single ranks.
    has_ranks_alone: bool


def render_reports(
    path: Path,
    shape: Format,
    request: ReportRequest,
    *,
    rank: int | None = None,
    capture: Path | None = None,
    reader: Reader,
) -> RenderedReport:
    """Render a report, a directory of reports or a multi-rank run.

    Args:
        path: Path as the user gave it.
        shape: Output format.
        request: What to show.
        rank: Rank of a multi-rank run to show.
        capture: Report in which the replayed graphs were captured.
        reader: How paths are read, and the file that will be written.

    Raises:
        UprofError: Same as the command `report`.
    """
    from unified_prof.pipeline import flight_recorder  # imports NumPy

    if dumps := flight_recorder.dump_files(path):
        if request.by is not None or rank is not None or shape.name not in _DUMP_FORMATS:
            text = f"{path} has Flight Recorder dumps, shown as {', '.join(_DUMP_FORMATS)}"
            raise UsageError(
                text,
                hint="omit --by and --rank, and choose one of these formats",
                slug="no-breakdown",
            )
        found = flight_recorder.compare_dumps(path, dumps)
        style = {"to_file": reader.output is not None, "full_names": request.full_names}
        is_json = shape.name == "json"
        text = "" if is_json else printing.render(found.document(request.top), shape.name, **style)
        return RenderedReport(text or printing.json_text(found.fields()), found.missing, False)
    with ExitStack() as stack:
        overview = None
        together = request.by is None and not reader.convert and capture is None and shape.is_text
        if rank is not None or together:
            overview = stack.enter_context(reader.ranks(path, needed=rank is not None))
        if rank is not None:
            path = rank_runs.rank_report(overview, path, rank)
            overview = None
        reports = None
        if overview is None or len(overview.run.read) <= _MAX_RANK_REPORTS:
            reports = stack.enter_context(_open_report(path, overview, capture, reader))
        if overview is None:
            assert reports is not None
            return RenderedReport(shape.produce(reports, request), reports.coverage.sentence, False)
        return RenderedReport(
            _produce_ranks(overview, shape, request, reports),
            overview.coverage if overview.missing else "",
            reports is None,
        )


def _produce_ranks(
    overview: Overview, shape: Format, request: ReportRequest, reports: Opened | None
) -> str:
    """Render a run, followed by the reports of its ranks if there are few."""
    from unified_prof.report import cluster_document, formats
    from unified_prof.report.figures import figures_document

    own = formats.ClusterRequest(
        top=request.top, full_names=request.full_names, width=request.width, color=request.color
    )
    if shape.name == "json":
        told = figures_document(()) | {"coverage": None}
        if reports is not None:
            told = json.loads(shape.text(reports, request))
        return printing.json_text(told | {"cluster": cluster_document.run_fields(overview)})
    text = formats.produce_cluster(shape, overview, own)
    if reports is None or shape.name == "html":
        return text
    if shape.name == "csv":
        return shape.text(reports, request)
    return f"{text}\n{shape.text(reports, request)}"


def print_hints(path: Path, made: RenderedReport) -> None:
    """Print hints: other views of the run, and results of killed runs."""
    from unified_prof.sqlite.run_spool import recovery_hint

    if made.has_ranks_alone:
        printing.print_message("uprof: hint: use --rank N to show the report of one rank")
    if path.is_dir() and (hint := recovery_hint(path)) is not None:
        printing.print_message(f"uprof: hint: {hint}")


@contextmanager
def _open_report(
    path: Path, overview: Overview | None, capture: Path | None, reader: Reader
) -> Iterator[Opened | None]:
    """Open the reports; ranks of a cluster summary may be missing."""
    from unified_prof.explain.api import open_reports

    if overview is not None and (not path.is_dir() or overview.run.file.parent == path):
        yield None
        return
    ready = reader.reports(path)
    if capture is not None:
        capture = reader.reports(capture, several=False).path
    with (
        printing.with_convert_hint(path),
        open_reports(ready.path, ready.missing, capture=capture) as opened,
    ):
        yield opened


def noise_of(text: str | None, run: Run) -> Noise | None:
    """Return the run-to-run variation given by `text`, else the one stored for the device of `run`.

    Raises:
        UsageError: The text is not a share.
        StoreError: The stored value cannot be read.
    """
    from unified_prof.baselines import noise as learned
    from unified_prof.compare.gate import parse_noise

    return learned.load(run) if text is None else parse_noise(text)


WorkloadOption = Annotated[
    list[str] | None,
    option(
        "--workload",
        metavar="NAME=BASE:NEW",
        help="Reports of a workload, instead of BASE and NEW. Repeatable, for several "
        "workloads and several runs of one.",
        shown_by=HELP_ALL,
    ),
]
_NAME = r"[A-Za-z0-9_][\w.+-]*"
_HINT = "for example --workload bert=base/bert:new/bert"

# Workload -> reports of the baseline and of the candidate.
WorkloadPairs = dict[str, tuple[list[Path], list[Path]]]


def parse_workloads(texts: Sequence[str]) -> WorkloadPairs:
    """Return the reports by workload.

    Raises:
        UsageError: A text is not NAME=BASE:NEW, or is ambiguous.
    """
    found: WorkloadPairs = {}
    for text in texts:
        match = re.fullmatch(rf"({_NAME})=(.+)", text)
        if match is None or ":" not in match[2]:
            raise UsageError(
                f"--workload {text!r}: expected NAME=BASE:NEW", hint=_HINT, slug="wrong-workload"
            )
        base, new = _two_paths(match[2], text)
        sides = found.setdefault(match[1], ([], []))
        sides[0].append(base)
        sides[1].append(new)
    return found


def _two_paths(text: str, whole: str) -> tuple[Path, Path]:
    """Split at the colon that yields two existing paths; file names may contain colons."""
    ways = [
        (Path(text[:at]), Path(text[at + 1 :]))
        for at, letter in enumerate(text)
        if letter == ":" and 0 < at < len(text) - 1
    ]
    there = [way for way in ways if all(path.exists() for path in way)]
    chosen = there or ways
    if len(chosen) != 1:
        missing = (
            ("ambiguous, more than one pair of paths exists") if there else "no two existing paths"
        )
        raise UsageError(f"--workload {whole}: {missing}", hint=_HINT, slug="wrong-workload")
    return chosen[0]


def load_workloads(given: WorkloadPairs, reader: Reader) -> Pairs:
    """Return the runs of each workload.

    Raises:
        UprofError: Same as `Reader.run`.
    """
    return {name: (reader.run(base), reader.run(new)) for name, (base, new) in given.items()}


def noises_of(text: str | None, pairs: Pairs) -> Noises:
    """Return the run-to-run variation of each workload; see `noise_of`."""
    return {name: noise_of(text, new) for name, (_, new) in pairs.items()}
