"""Writes reports from the saved measurements of killed runs."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from unified_prof.backends.registry import MEMORY, RUN_TIME
from unified_prof.errors import OutputError, RawFormatError, StoreError, UprofError, UsageError
from unified_prof.pipeline import outputs, provenance
from unified_prof.pipeline.distributed import Rank
from unified_prof.sqlite import run_folder, run_spool, skyline_writer
from unified_prof.sqlite.run_spool import Spooled

_WRITERS = {RUN_TIME: skyline_writer.write_run_time, MEMORY: skyline_writer.write_memory}


@dataclass(frozen=True, slots=True)
class Recovery:
    """Result for one file of saved measurements (spool)."""

    spool: Path
    files: Mapping[str, Path] = field(default_factory=dict)
    """Report kind -> file; empty if no report could be made."""
    rank: int | None = None
    iterations: int = 0
    """Complete iterations in the spool."""
    asked: int = 0
    """Number of requested iterations."""
    saved: str | None = None
    """Time of the last save, in ISO 8601."""
    remark: str | None = None
    """Note for the user."""
    error: UprofError | None = None
    """Reason why there are no reports."""
    runs: bool = False
    """True if the process is still running; the spool is then left unchanged."""

    def fields(self) -> dict[str, Any]:
        """Return the result as plain data, without its error."""
        record: dict[str, Any] = {"spool": str(self.spool), "runs": self.runs}
        if self.runs or self.error is not None:
            return record
        return record | {
            "rank": self.rank,
            "files": {kind: str(path) for kind, path in self.files.items()},
            "iterations": self.iterations,
            "asked": self.asked,
            "saved": self.saved,
            "remark": self.remark,
        }

    def lines(self) -> Iterator[str]:
        """Yield the result as lines of text; an error has none."""
        if self.runs:
            yield f"{self.spool}: skipped, its process is still running"
        elif self.error is None:
            files = ", ".join(str(path) for path in self.files.values())
            count = f"{self.iterations} of {self.asked} iterations, saved at {self.saved}"
            yield f"{files}: {count}; later ones are lost"
            if self.remark:
                yield self.remark


def recover(folder: Path, *, force: bool = False) -> Iterator[Recovery]:
    """Write reports from spools of killed processes in `folder`; yield a result per spool.

    A spool is removed when its reports are written. If a rank has several spools, the reports of
    the newest get the usual names, and those of older ones contain the process id.

    Args:
        folder: Output directory of `uprof run`, or of several runs.
        force: If True, reports of another run may be overwritten.

    Raises:
        UsageError: `folder` is not a directory.
    """
    if not folder.is_dir():
        raise UsageError(
            f"{folder} is not an existing directory",
            hint="pass the output directory of `uprof run`",
            slug="no-folder",
        )
    taken: set[Path] = set()
    for path in sorted(run_spool.find(folder), key=_modified_ns, reverse=True):
        if run_spool.state_of(path) == run_spool.RUNS:
            yield Recovery(path, runs=True)
            continue
        try:
            yield _recover_spool(path, taken, force=force)
        except UprofError as err:
            yield Recovery(path, error=err)


def exit_code(outcomes: Sequence[Recovery]) -> int:
    """Return the exit code: that of damage, of output errors, 1 if nothing was recovered, or 0."""
    codes = {one.error.exit_code for one in outcomes if one.error is not None}
    for code in (RawFormatError.exit_code, OutputError.exit_code):
        if code in codes:
            return code
    return max(codes, default=not any(one.files for one in outcomes))


def _modified_ns(path: Path) -> int:
    try:
        return path.lstat().st_mtime_ns
    except OSError:
        return 0


def _recover_spool(path: Path, taken: set[Path], *, force: bool) -> Recovery:
    content = run_spool.read(path)
    names = outputs.skyline_files(path.parent, content.reports, Rank(content.rank, None, None))
    if taken & {*names.values()}:
        mark = f"_{run_spool.process_of(path)}"
        names = {kind: p.with_name(f"{p.stem}{mark}.sqlite") for kind, p in names.items()}
    taken |= {*names.values()}
    # The process may have been killed after one of its reports was complete: that one stays.
    missing = {kind: p for kind, p in names.items() if not _is_of_this_run(p, content)}
    if missing:
        outputs.refuse_existing_files(missing.values(), force=force)
        _write(path, missing, content, force=force)
    remark = _remark(path, content)
    try:
        path.unlink(missing_ok=True)
        _update_ranks(path.parent, names, content)
    except (OSError, UprofError) as err:
        remark = "; ".join(filter(None, (remark, str(err))))
    return Recovery(
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
    for kind, file in names.items():
        try:
            _WRITERS[kind](file, run, facts, overwrite=force)
        except (ValueError, OverflowError, sqlite3.Error) as err:
            raise RawFormatError(
                f"{path}: unexpected records: {err}", slug="damaged-spool"
            ) from err


def failure_of(content: Spooled) -> str:
    """Return the failure text for the reports, which says how much was saved."""
    run = content.run
    if "first_iteration_reported" in run.anomalies:
        saved = "its first iteration, including setup,"
    elif run.operations:
        saved = f"{len(run.iterations)} of {content.iterations} iterations"
    else:
        saved = "a complete iteration"
    return (
        f"the process ended before it wrote its reports: {saved} had been saved at "
        f"{content.saved}; later ones are lost"
    )


def _remark(path: Path, content: Spooled) -> str | None:
    if run_spool.state_of(path) == run_spool.ENDED:
        return None
    host = content.facts.get("host") or "another host"
    return (
        f"process {run_spool.process_of(path)} of {host} may still be running; if so, its own "
        "reports get other names"
    )


def _is_of_this_run(path: Path, content: Spooled) -> bool:
    """Return True if `path` is a report of the same run as this spool."""
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
    started = content.facts.get("started")
    return started is not None and all(
        facts.get(name) == content.facts.get(name) for name in ("started", "host", "rank")
    )


def _update_ranks(folder: Path, names: Mapping[str, Path], content: Spooled) -> None:
    """Add the reports of the rank to `run.json` if it exists."""
    if content.rank is None or not run_folder.has_entry(folder, content.rank):
        return
    try:
        known = run_folder.read(folder)
    except StoreError as err:
        raise OutputError(f"the list of ranks was not updated: {err}", slug="cannot-write") from err
    entry = None if known is None else known.ranks.get(content.rank)
    if entry is not None:
        files = {kind: [str(file.relative_to(folder))] for kind, file in names.items()}
        ended = replace(entry, state=run_folder.ENDED, files=files, failure=failure_of(content))
        run_folder.note(folder, ended)
