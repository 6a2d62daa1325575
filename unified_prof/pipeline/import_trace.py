"""From other profilers' recordings to msprof databases."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from unified_prof.decoders import kineto
from unified_prof.errors import OutputError, RawFormatError, UprofError, UsageError
from unified_prof.models import catalogue
from unified_prof.pipeline import ascend_layout
from unified_prof.pipeline.tally import Tally
from unified_prof.store.writer import ReportWriter
from unified_prof.version import VERSION

PLAIN = "plain"
ASCEND_PT = "ascend-pt"
LAYOUTS = (PLAIN, ASCEND_PT)

_TRACE_SUFFIXES = re.compile(r"(\.pt)?(\.trace)?\.json(\.gz)?$|\.gz$", re.IGNORECASE)

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Imported:
    """A report that was made of a trace, and what went into it."""

    trace: Path
    report: Path
    decoded: kineto.DecodedTrace
    rows: Mapping[str, int]
    """Rows by table, only tables that have some."""
    anomalies: Mapping[str, tuple[int, str]]
    """What was skipped or not understood: (count, the first case in words) by name."""


@dataclass(slots=True)
class Outcome:
    """What became of one trace of several: `imported` or `error`."""

    trace: Path
    imported: Imported | None = None
    error: UprofError | None = None


def import_trace(
    trace: Path,
    report: Path,
    *,
    schema: str = "documented",
    force: bool = False,
    facts: Mapping[str, str | None] | None = None,
    of_own_run: bool = False,
    all_tables: bool = False,
    progress: Progress = lambda _: None,
) -> Imported:
    """Make an msprof database of a torch.profiler trace.

    Args:
        trace: Chrome JSON as torch.profiler writes it, plain or gzip.
        report: The database.
        schema: Revision or alias of the msprof schema.
        force: Whether an existing report may be replaced.
        facts: More provenance to record.
        of_own_run: Whether uprof ran the program: its own frames are left out of call chains.
        all_tables: Whether to create the tables without rows as well.
        progress: Told in a few words what is going on.

    Raises:
        RawFormatError: no trace, or damaged beyond reading.
        OutputError: the report exists or cannot be written.
        UsageError: no such revision.
    """
    spec = catalogue.load(catalogue.MSPROF, schema)
    columns = {name: frozenset(table.column_names) for name, table in spec.tables.items()}
    data_types = {str(name): int(str(i)) for i, name in spec.rows.get("ENUM_HCCL_DATA_TYPE", ())}
    if trace.is_dir():
        raise UsageError(f"{trace} is a folder", hint="name the traces in it")
    if not trace.exists():
        raise RawFormatError(f"{trace}: no such file")
    with ReportWriter(report, revision=schema, overwrite=force, all_tables=all_tables) as writer:
        tally = Tally(writer)
        decoded = kineto.decode(
            trace,
            tally,
            has_column=lambda table, column: column in columns.get(table, ()),
            data_types=data_types,
            is_outside=_is_own_frame if of_own_run else lambda _: False,
            progress=progress,
        )
        own_facts = {
            "tool": f"uprof {VERSION}",
            "command": "import",
            "trace": trace.name,
            "trace_bytes": trace.stat().st_size,
        }
        for name, value in {**own_facts, **decoded.facts, **(facts or {})}.items():
            writer.fact(name, value)
        progress("finishing the report")
    return Imported(trace, report, decoded, tally.rows, tally.anomalies)


def import_all(
    traces: Sequence[Path],
    output: Path | None = None,
    *,
    schema: str = "documented",
    layout: str = PLAIN,
    force: bool = False,
    progress: Progress = lambda _: None,
) -> Iterator[Outcome]:
    """Import traces one by one; one that fails does not stop the others.

    Args:
        traces: Trace files.
        output: A file if it ends in `.db` and there is one trace, else a folder; by default
            the current one.
        schema: Revision or alias of the msprof schema.
        layout: `plain`, or `ascend-pt` for the names and folders of torch_npu.
        force: Whether reports that are there may be replaced.
        progress: Told in a few words what is going on.

    Raises:
        UsageError: the layout cannot be had in a file.
        OutputError: the folder cannot be made.
    """
    one_file = output is not None and output.suffix == ".db" and not output.is_dir()
    if one_file and (len(traces) != 1 or layout != PLAIN):
        what = "several traces" if len(traces) != 1 else f"the layout {layout}"
        raise UsageError(f"{what} cannot go into one file {output}", hint="-o names a folder then")
    names = _report_names(traces)
    for trace, name in zip(traces, names, strict=True):
        progress(f"{trace.name}")
        try:
            if one_file:
                assert output is not None
                made = import_trace(trace, output, schema=schema, force=force, progress=progress)
            elif layout == ASCEND_PT:
                made = _import_as_ascend_pt(
                    trace,
                    (output or Path()) / f"{name}{ascend_layout.FOLDER_SUFFIX}",
                    schema,
                    force,
                    progress,
                )
            else:
                with _folder(output or Path()) as folder:
                    made = import_trace(
                        trace, folder / f"{name}.db", schema=schema, force=force, progress=progress
                    )
            yield Outcome(trace, made)
        except UprofError as err:
            yield Outcome(trace, error=err)


def _is_own_frame(frame: str) -> bool:
    """Tell frames of this package, as the profiler writes them: it strips site-packages."""
    package = Path(__file__).resolve().parents[1]
    return frame.startswith((f"{package.name}/", f"{package}/"))


def worst_exit_code(outcomes: Iterable[Outcome]) -> int:
    """Return the exit code of several imports: of the first that failed, else 0."""
    return next((o.error.exit_code for o in outcomes if o.error is not None), 0)


def _import_as_ascend_pt(
    trace: Path, folder: Path, schema: str, force: bool, progress: Progress
) -> Imported:
    """Import into the folders of torch_npu, with the companion file its readers look for."""
    replaced = ascend_layout.databases_in(folder, force=force)
    with _folder(folder / ascend_layout.OUTPUT_FOLDER) as output:
        unnamed = output / ascend_layout.database_name(None)
        made = import_trace(
            trace,
            unnamed,
            schema=schema,
            force=force,
            all_tables=_wants_all_tables(schema),
            progress=progress,
        )
        try:
            report = ascend_layout.complete(unnamed, made.decoded.rank, replaced)
        except BaseException:
            unnamed.unlink(missing_ok=True)
            raise
    return replace(made, report=report)


def _wants_all_tables(schema: str) -> bool:
    """Tell whether readers of the layout do better with empty tables than without.

    msprof-analyze fails where COMMUNICATION_OP is missing. But an empty OVERLAP_ANALYSIS, which
    newer revisions have, would keep MindStudio Insight from computing its own.
    """
    return "OVERLAP_ANALYSIS" not in catalogue.load(catalogue.MSPROF, schema).tables


@contextmanager
def _folder(folder: Path) -> Iterator[Path]:
    """Make `folder`; take away again what was made if nothing comes of it."""
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as err:
        raise OutputError(f"cannot make the folder {folder}: {err.strerror}") from err
    try:
        yield folder
    except BaseException:
        for path in made:
            try:
                path.rmdir()
            except OSError:
                break
        raise


def _stem(trace: Path) -> str:
    return _TRACE_SUFFIXES.sub("", trace.name) or trace.name


def _report_names(traces: Sequence[Path]) -> list[str]:
    """Name each report after its trace; traces of the same name also after their folder."""
    stems = [_stem(trace) for trace in traces]
    repeated = {stem for stem, count in Counter(stems).items() if count > 1}
    names: list[str] = []
    for trace, stem in zip(traces, stems, strict=True):
        name = f"{trace.resolve().parent.name}_{stem}" if stem in repeated else stem
        number = 2
        while name in names:
            name, number = f"{stem}_{number}", number + 1
        names.append(name)
    return names
