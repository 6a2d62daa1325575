"""Reports of what a run had measured when its process was killed."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from unified_prof.backends.registry import MEMORY, RUN_TIME
from unified_prof.errors import OutputError, RawFormatError, StoreError, UprofError, UsageError
from unified_prof.pipeline import outputs, provenance
from unified_prof.pipeline.distributed import Rank
from unified_prof.sqlite import run_folder, skyline_writer, spool
from unified_prof.sqlite.spool import Spooled

_WRITERS = {RUN_TIME: skyline_writer.write_run_time, MEMORY: skyline_writer.write_memory}


@dataclass(frozen=True, slots=True)
class Recovered:
    """What became of one spool."""

    spool: Path
    files: Mapping[str, Path] = field(default_factory=dict)
    """Kind of report -> the file; empty where none could be made."""
    rank: int | None = None
    iterations: int = 0
    """How many complete ones it held."""
    asked: int = 0
    """How many were to be measured."""
    saved: str | None = None
    """When, in ISO 8601."""
    remark: str | None = None
    """What has to be said about it."""
    error: UprofError | None = None
    """Why there are no reports of it."""
    runs: bool = False
    """Its process still runs: it was left alone."""


def recover(folder: Path, *, force: bool = False) -> Iterator[Recovered]:
    """Make reports of what killed processes have left in `folder`; yield what became of each.

    A spool is removed when its reports are there. Of several of one rank the newest gets the
    usual names, an older one names with its process's number.

    Args:
        folder: Where `uprof run -o` was to write, or where several runs were.
        force: Whether reports of another run may be overwritten.

    Raises:
        UsageError: it is no folder.
    """
    if not folder.is_dir():
        raise UsageError(
            f"{folder} is not an existing directory",
            hint="give the output directory of `uprof run`",
            slug="no-folder",
        )
    taken: set[Path] = set()
    for path in sorted(spool.find(folder), key=_changed_ns, reverse=True):
        if spool.state_of(path) == spool.RUNS:
            yield Recovered(path, runs=True)
            continue
        try:
            yield _recovered(path, taken, force=force)
        except UprofError as err:
            yield Recovered(path, error=err)


def _changed_ns(path: Path) -> int:
    try:
        return path.lstat().st_mtime_ns
    except OSError:
        return 0


def _recovered(path: Path, taken: set[Path], *, force: bool) -> Recovered:
    content = spool.read(path)
    names = outputs.skyline_files(path.parent, content.reports, Rank(content.rank, None, None))
    if taken & {*names.values()}:
        mark = f"_{spool.process_of(path)}"
        names = {kind: one.with_name(f"{one.stem}{mark}.sqlite") for kind, one in names.items()}
    taken |= {*names.values()}
    # The process may have been killed, or we, when one of its reports was complete: that one stays.
    missing = {kind: one for kind, one in names.items() if not _is_of_this_run(one, content)}
    if missing:
        outputs.refuse_existing_files(missing.values(), force=force)
        _write(path, missing, content, force=force)
    remark = _remark(path, content)
    try:
        path.unlink(missing_ok=True)
        _tell_others(path.parent, names, content)
    except (OSError, UprofError) as err:
        remark = "; ".join(filter(None, (remark, str(err))))
    return Recovered(
        path,
        names,
        content.rank,
        len(content.run.iterations),
        content.iterations,
        content.saved,
        remark,
    )


def _write(path: Path, names: Mapping[str, Path], content: Spooled, *, force: bool) -> None:
    run = replace(content.run, complete=False)
    facts = provenance.of_records(content.facts, run, failure_of(content))
    for kind, one in names.items():
        try:
            _WRITERS[kind](one, run, facts, overwrite=force)
        except (ValueError, OverflowError, sqlite3.Error) as err:
            raise RawFormatError(
                f"{path}: unexpected records: {err}", slug="damaged-spool"
            ) from err


def failure_of(content: Spooled) -> str:
    """Return what the reports say of how the run ended, as far as it is known."""
    run = content.run
    if "first_iteration_reported" in run.anomalies:
        what = "its first iteration, including setup,"
    elif run.operations:
        what = f"{len(run.iterations)} of {content.iterations} iterations"
    else:
        what = "a complete iteration"
    return (
        f"the process ended before it wrote its reports: {what} had been saved at {content.saved}"
    )


def _remark(path: Path, content: Spooled) -> str | None:
    if spool.state_of(path) == spool.ENDED:
        return None
    host = content.facts.get("host") or "another host"
    return (
        f"process {spool.process_of(path)} of {host} may still be running; if so, its own "
        "reports get other names"
    )


def _is_of_this_run(path: Path, content: Spooled) -> bool:
    """Whether `path` is a report of the run that left this spool."""
    from unified_prof.sqlite.reader import open_report

    if not path.is_file():
        return False
    try:
        with open_report(path) as report:
            if "UPROF_RUN" not in report.tables:
                return False
            facts = dict(report.rows("SELECT name, value FROM UPROF_RUN"))
    except (StoreError, OSError):
        return False
    ours = content.facts.get("started")
    return ours is not None and all(
        facts.get(name) == content.facts.get(name) for name in ("started", "host", "rank")
    )


def _tell_others(folder: Path, names: Mapping[str, Path], content: Spooled) -> None:
    """Say in `run.json`, where there is one, which reports the rank has now."""
    if content.rank is None or not run_folder.has_entry(folder, content.rank):
        return
    try:
        known = run_folder.read(folder)
    except StoreError as err:
        raise OutputError(f"the list of ranks was not updated: {err}", slug="cannot-write") from err
    entry = None if known is None else known.ranks.get(content.rank)
    if entry is not None:
        files = {kind: [str(one.relative_to(folder))] for kind, one in names.items()}
        ended = replace(entry, state=run_folder.ENDED, files=files, failure=failure_of(content))
        run_folder.note(folder, ended)
