"""Writes the reports of one run while it runs and after it ends, also from those of killed runs."""

from __future__ import annotations

import os
import platform
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from unified_prof.base import signals, streams
from unified_prof.base.run_spec import MEMORY, RUN_TIME, TIMELINE, Capture, RunSpec, TrackedRun
from unified_prof.errors import OutputError, RawFormatError, StoreError, UprofError, UsageError
from unified_prof.pipeline import outputs, provenance
from unified_prof.pipeline.outputs import ALL, Rank, RankSelection, rank_here, rank_of
from unified_prof.pipeline.provenance import build_databases
from unified_prof.sqlite import run_folder, run_spool, skyline_writer
from unified_prof.sqlite.run_folder import RankEntry
from unified_prof.sqlite.run_spool import Spool, Spooled
from unified_prof.sqlite.skyline_writer import complete_run

# Facts that are NULL in reports written while the workload is running.
_FINAL_FACTS = ("exit_code", "finished")


class Reports:
    """Reports of one run or rank, written as early as possible.

    `in_program` means that only a part of a program is measured, which has no exit code. `ranks`
    are the measured ones of a distributed run; `on_written` is called with the files that were
    written while the workload is running. Raises OutputError if a report of that name exists and
    `force` is false.
    """

    def __init__(
        self,
        spec: RunSpec,
        backend: str | None,
        *,
        force: bool,
        in_program: bool = False,
        ranks: RankSelection = ALL,
        on_written: Callable[[Mapping[str, tuple[Path, ...]]], None] = lambda _: None,
    ) -> None:
        self.rank: Rank = rank_here() if in_program else rank_of()
        self.directory = outputs.attempt_directory(spec.output_dir, self.rank)
        # Directory of raw recordings: file names of ranks are equal.
        self.raw = (self.directory / self.rank.suffix.removeprefix("_")).absolute()
        self._paths: dict[str, tuple[Path, ...]] = {}
        self.notes: list[str] = []  # Notes for the user.
        self._spec, self._backend, self._force = spec, backend, force
        self._ranks, self._on_written = ranks, on_written
        self._final_facts = _FINAL_FACTS[1:] if in_program else _FINAL_FACTS
        # Absolute, because the workload can change the directory.
        self._absolute = self.directory.absolute()
        self._facts: dict[str, str | None] = {}
        self._written: Capture | None = None
        self._owner = os.getpid()
        names = outputs.skyline_files(self._absolute, spec.reports, self.rank)
        self._skyline = names
        self._spool = Spool(self._absolute, self.rank.suffix)
        outputs.refuse_existing_files(names.values(), force=force)
        if TIMELINE in spec.reports:
            outputs.refuse_existing_files([outputs.timeline_file(self.raw, self.rank)], force=force)

    @property
    def files(self) -> dict[str, tuple[Path, ...]]:
        """Report kind -> files written, as paths below the directory that the user passed."""
        return {kind: tuple(map(self._display_path, paths)) for kind, paths in self._paths.items()}

    def begin(self) -> None:
        """Record the facts known before the workload starts; the directory must exist."""
        self._begin_ns = time.time_ns()
        self._facts = provenance.of_run(self._spec, self._backend, self.rank, provenance.now())
        self._facts |= dict.fromkeys(self._final_facts)
        self._update_ranks(run_folder.STARTED)
        if self._force:
            self._spool.remove_those_of_the_dead()

    def partial(self, run: TrackedRun) -> None:
        """Save the complete iterations for `uprof db recover`, in case the process is killed.

        Raises OSError if the file cannot be written.
        """
        if os.getpid() != self._owner or not self._skyline:
            return
        self._spool.write(
            Spooled(
                reports=tuple(self._skyline),
                rank=self.rank.number,
                iterations=self._spec.iterations,
                saved=provenance.timestamp(provenance.now()),
                facts=self._facts,
                run=run,
            )
        )

    def measured(self, capture: Capture) -> None:
        """Write the reports while the workload is running, in case it is killed.

        Failures are ignored, because `finish` tries again.
        """
        if os.getpid() != self._owner:
            return
        streams.fill_closed_descriptors()
        with signals.held_back():
            try:
                self._write(capture)
            except (UprofError, OSError):
                self._paths.clear()
                return
            self._spool.remove()
            self._update_ranks(run_folder.MEASURED)
        self._on_written(self.files)

    def finish(self, capture: Capture) -> None:
        """Write the remaining reports and the exit status after the workload has ended.

        Raises OutputError if a report cannot be written, and CaptureError if no recording could be
        converted to a database.
        """
        streams.fill_closed_descriptors()
        self._note_end(capture.exit_code)
        written = self._written
        if (
            written is not None
            and capture.tracked is written.tracked
            and capture.recordings == written.recordings
            and all(path.exists() for path in self._all_paths())
        ):
            self._complete()
        else:
            try:
                self._write(capture)
            except OutputError as err:
                if self._spool.path.exists():
                    then = (
                        f"recover the saved measurements with `uprof db recover {self.directory}`"
                    )
                    err.hint = "; then ".join(filter(None, (err.hint, then)))
                raise
        if capture.tracked is not None:
            self._spool.remove()
        self._update_ranks(run_folder.ENDED, capture.exit_code, capture.failure)

    def write_stub(self, failure: str) -> None:
        """Write reports that contain no measurements, only the failure.

        Used if the workload of this rank succeeded and other ranks depend on it, but measuring
        failed.
        """
        self._note_end(0)
        empty_run = TrackedRun(
            device=self._backend or "unknown",
            operations=(),
            weights=(),
            activations=(),
            iterations=(),
            peak_usage_bytes=None,
            complete=False,
            anomalies={"nothing_measured": (1, failure)},
        )
        missing = {kind: path for kind, path in self._skyline.items() if kind not in self._paths}
        try:
            self._write_skyline(missing, Capture(0, empty_run, failure=failure))
        except Exception as err:  # the reason of the first failure may apply again
            self.notes += [] if (text := outputs.error_text(err)) in failure else [text]
        self._update_ranks(run_folder.ENDED, 0, failure)

    def record_failure(self, exit_code: int | None, failure: str) -> None:
        """Record in `run.json` why this rank has no reports; an unknown exit code is None."""
        self._update_ranks(run_folder.ENDED, exit_code, failure)

    def _write(self, capture: Capture) -> None:
        self._facts |= capture.facts
        self._write_skyline(self._skyline, capture)
        # Why the recordings may be incomplete.
        error = None if capture.error is None else outputs.error_text(capture.error)
        reasons = [reason for reason in (capture.failure, error) if reason]
        databases, notes = build_databases(
            capture.recordings,
            self._spec.options,
            rank=self.rank,
            facts=self._facts | ({"failure": "; ".join(reasons)} if reasons else {}),
            force=self._force or self._written is not None,
        )
        if databases:
            self._paths[TIMELINE] = databases
        self.notes += notes
        self._written = capture

    def _write_skyline(self, names: Mapping[str, Path], capture: Capture) -> None:
        """Write the Skyline reports of `capture`, if it was tracked."""
        run = capture.tracked
        if run is None:
            return
        facts = provenance.of_records(self._facts, run, capture.failure)
        outputs.make_directory(self._absolute)  # another rank may have removed it
        names = self._unused_names(names)
        for report, path in names.items():
            _WRITERS[report](path, run, facts, overwrite=self._force or self._written is not None)
            self._paths[report] = (path,)

    def _unused_names(self, names: Mapping[str, Path]) -> Mapping[str, Path]:
        """Return `names`, or other names if another process wrote one of the files meanwhile.

        Two processes may use the same directory; the reports of both are kept.
        """
        written = self._all_paths()
        if not any(self._is_taken(path) for path in names.values() if path not in written):
            return names
        mark = f"{platform.node() or 'host'}_{os.getpid()}"
        taken = ", ".join(path.name for path in names.values())
        self.notes.append(f"another process wrote {taken} meanwhile; these reports got other names")
        return {
            report: path.with_name(f"{path.stem}_{mark}{path.suffix}")
            for report, path in names.items()
        }

    def _is_taken(self, path: Path) -> bool:
        try:
            modified_ns = path.stat().st_mtime_ns
        except OSError:
            return False
        return not self._force or modified_ns >= self._begin_ns

    def _all_paths(self) -> list[Path]:
        return [path for paths in self._paths.values() for path in paths]

    def _note_end(self, exit_code: int) -> None:
        self._facts["finished"] = provenance.timestamp(provenance.now())
        if "exit_code" in self._final_facts:
            self._facts["exit_code"] = str(exit_code)

    def _complete(self) -> None:
        known = {
            name: value for name in self._final_facts if (value := self._facts[name]) is not None
        }
        for path in self._all_paths():
            try:
                complete_run(path, known)
            except UprofError as err:
                self.notes.append(f"a report lacks the exit status of the workload: {err}")

    def _update_ranks(
        self, state: str, exit_code: int | None = None, failure: str | None = None
    ) -> None:
        """Write the state of this rank to `run.json` if there are other ranks."""
        rank = self.rank
        if not rank.is_distributed or rank.number is None or rank.world_size is None:
            return
        entry = RankEntry(
            rank=rank.number,
            world_size=rank.world_size,
            expected_ranks=tuple(self._ranks.selected_from(rank.world_size)),
            host=platform.node(),
            state=state,
            local_rank=rank.local_rank,
            launcher=rank.launcher,
            job=rank.job,
            started=self._facts.get("started"),
            finished=self._facts.get("finished"),
            exit_code=exit_code,
            files={
                report: [str(path.relative_to(self.directory)) for path in paths]
                for report, paths in self.files.items()
            },
            failure="; ".join(filter(None, [failure, *self.notes])) or None,
        )
        try:
            run_folder.note(self._absolute, entry)
        except (UprofError, OSError) as err:
            note = f"the list of ranks was not updated: {err}"
            self.notes += [] if note in self.notes else [note]

    def _display_path(self, path: Path) -> Path:
        """Return `path` relative to the directory that the user passed."""
        for directory in (self._absolute, self._absolute.resolve()):
            if path.is_relative_to(directory):
                return self.directory / path.relative_to(directory)
        return path


def with_output(spec: RunSpec, reports: Reports) -> RunSpec:
    """Return `spec` with the directory for raw recordings and callbacks to `reports`."""
    return replace(
        spec, output_dir=reports.raw, on_measured=reports.measured, on_partial=reports.partial
    )


_WRITERS = {RUN_TIME: skyline_writer.write_run_time, MEMORY: skyline_writer.write_memory}


class Recovery(Struct, frozen=True):
    """Result for one file of saved measurements (spool)."""

    spool: Path
    # Report kind -> file; empty if no report could be made.
    files: Mapping[str, Path] = field(default_factory=dict)
    rank: int | None = None
    iterations: int = 0  # Complete iterations in the spool.
    asked: int = 0  # Number of requested iterations.
    saved: str | None = None  # Time of the last save, in ISO 8601.
    remark: str | None = None  # Note for the user.
    error: UprofError | None = None  # Reason why there are no reports.
    runs: bool = False  # True if the process is still running; the spool is then left unchanged.

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
    the newest get the usual names, and those of older ones contain the process id. `folder` is the
    output directory of `uprof run`, or of several runs. Raises UsageError if `folder` is not a
    directory.
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
    remark = None
    if run_spool.state_of(path) != run_spool.ENDED:
        host = content.facts.get("host") or "another host"
        remark = (
            f"process {run_spool.process_of(path)} of {host} may still be running; if so, its own "
            "reports get other names"
        )
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
