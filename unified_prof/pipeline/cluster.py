"""Builds a cluster run from the recordings of many ranks: one partial per rank and a summary.

A run is a directory with `cluster.sqlite` and `partials/`. A build reuses partials and summaries of
unchanged inputs, so an interrupted build can be continued.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from unified_prof.cluster.overview import format_ranges
from unified_prof.cluster.rank_partial import (
    PARTIALS_DIRECTORY,
    SUMMARY_FILE_NAME,
    Partial,
    PartialSource,
    UnreadableRecording,
)
from unified_prof.errors import (
    OutputError,
    SchemaVersionError,
    StoreError,
    UprofError,
    system_errors,
)
from unified_prof.pipeline import executors
from unified_prof.pipeline.cluster_inputs import Input, inputs_of, rank_in
from unified_prof.pipeline.cluster_map import (
    Progress,
    RankFile,
    assign_ranks,
    distributed_sums,
    map_inputs,
    read_partials,
)
from unified_prof.pipeline.executors import WorkerPool
from unified_prof.pipeline.remote import StorageDirectory, fetch, local_path
from unified_prof.schema.catalogue import CLUSTER
from unified_prof.sqlite import skyline_writer
from unified_prof.sqlite.atomic import temporary_folder
from unified_prof.sqlite.opening import detect
from unified_prof.sqlite.reader import open_report
from unified_prof.version import VERSION

if TYPE_CHECKING:
    from unified_prof.cluster.matching import SequenceMatch
    from unified_prof.cluster.summary import RunSummary
    from unified_prof.cluster.waits import KeySums

# Name of the row in UPROF_RUN that identifies the partials of a summary.
_MADE_OF = "made_of"
_COMMAND = "uprof cluster build"
# Facts of META_DATA that a ClusterOutcome contains.
_OUTCOME_FACTS = ("world_size", "world_size_is_minimum", "ranks_read", "steps", "unnumbered")
_MAX_LISTED = 12  # Maximum number of ranks listed in the coverage.
_MAX_FINDINGS = 3  # Maximum number of findings in the text of a result.
# Minimum number of ranks to start worker processes, which takes longer than reading fewer.
_MIN_RANKS_FOR_PROCESSES = 64


class ClusterOutcome(Struct, frozen=True):
    """Result of a build."""

    target: str  # Directory or URL of the run.
    world_size: int
    ranks_read: int
    new: int  # Number of ranks whose partials were created by this build.
    steps: tuple[int, ...]
    absent: tuple[int, ...]
    unread: tuple[UnreadableRecording, ...]
    findings: tuple[str, ...]  # Findings, one sentence each, most expensive first.
    already: bool = False  # True if the summary existed and was up to date.
    world_size_is_minimum: bool = False

    def fields(self) -> dict[str, Any]:
        """Return the result as plain data."""
        return {
            "run": self.target,
            "world_size": self.world_size,
            "ranks_read": self.ranks_read,
            "new": self.new,
            "steps": list(self.steps),
            "absent": list(self.absent),
            "unread": [{"rank": one.rank, "file": one.file, "why": one.why} for one in self.unread],
            "findings": list(self.findings),
        }

    def lines(self) -> Iterator[str]:
        """Yield the result as lines of text, problems first."""
        if not self.is_complete:
            yield f"uprof: warning: {self.coverage}"
            hints = [one.hint for one in self.unread if one.rank is None and one.hint is not None]
            for hint in dict.fromkeys(hints):
                yield f"uprof: hint: {hint}"
        steps = f"{len(self.steps)} step{'s' if len(self.steps) != 1 else ''}"
        what = "no recording changed" if self.already else f"recordings read: {self.new:,}"
        ranks = f"{self.ranks_read:,} rank{'s' if self.ranks_read != 1 else ''}"
        yield f"{self.target}: {ranks}, {steps}; {what}"
        for text in self.findings[:_MAX_FINDINGS]:
            yield f"  {text}"
        if len(self.findings) > _MAX_FINDINGS:
            yield f"  and {len(self.findings) - _MAX_FINDINGS} more findings"
        elif not self.findings:
            yield "  no findings"

    @property
    def is_complete(self) -> bool:
        """True if every rank of the run was read."""
        return not self.absent and not self.unread

    @property
    def coverage(self) -> str:
        """Number of ranks that were read, and why the others were not."""
        at_least = "at least " if self.world_size_is_minimum else ""
        parts = [f"{self.ranks_read:,} of {at_least}{self.world_size:,} ranks"]
        if self.absent:
            parts.append(f"missing: {format_ranges(self.absent, most=_MAX_LISTED)}")
        parts += [
            f"{one.file if one.rank is None else f'rank {one.rank}'}: {one.why}"
            for one in self.unread[:_MAX_LISTED]
        ]
        if len(self.unread) > _MAX_LISTED:
            parts.append(f"and {len(self.unread) - _MAX_LISTED:,} more unreadable")
        return "; ".join(parts)


def build(
    given: Sequence[str],
    target: str,
    *,
    scheduler: str | None = None,
    jobs: int | None = None,
    force: bool = False,
    verbose: bool = False,
    progress: Progress = lambda _: None,
    note: Callable[[str], None] = lambda _: None,
    inputs: Sequence[Input] | None = None,
) -> ClusterOutcome:
    """Build or complete a run with all ranks that `given` specifies.

    `given` are databases, recordings, directories of them, patterns, URLs and `RANK=PATH`, `target`
    is a directory or URL; see `executors.open_executor` for `scheduler` and `jobs`. If `force`, all
    partials and the summary are created again. `progress` is called with the current step, `note`
    with warnings; `inputs` are those of `given`, if they were found already.

    Raises:
        UprofError: No rank can be read; two files belong to the same rank; the target is not a run
            or cannot be written; no worker is available.
    """
    executors.check_scheduler(scheduler)
    run = StorageDirectory(target)
    folder = StorageDirectory(run.at(PARTIALS_DIRECTORY))
    refuse_others(run, force=force)
    inputs, lost = _inputs(given, progress) if inputs is None else (inputs, [])
    with executors.open_executor(
        scheduler, jobs=jobs or _jobs(inputs), note=note, verbose=verbose
    ) as pool:
        found = map_inputs(inputs, folder, pool, force=force, progress=progress)
        rows = sorted(f"{one.rank} {one.name} {one.location} {one.why}" for one in (*found, *lost))
        text = "\n".join((VERSION, *rows)).encode(errors="surrogateescape")
        made_of = hashlib.blake2b(text, digest_size=16).hexdigest()
        if not force and (existing := _existing_outcome(run, made_of)) is not None:
            return existing
        progress("combining ranks")
        found, summary = combine(inputs, found, folder, pool, lost, progress)
    _write(run, summary, made_of)
    used = {one.name for one in found if one.name is not None}
    replaced = {f"{one.rank:05d}" for one in found if one.is_new}
    for name in folder.names() if replaced else ():
        if name not in used and name.partition("-")[0] in replaced:
            folder.remove(name)
    return ClusterOutcome(
        run.location,
        summary.world_size,
        summary.ranks_read,
        sum(one.is_new for one in found),
        summary.steps,
        summary.absent,
        summary.unread,
        tuple(one.text for one in summary.ranked),
        world_size_is_minimum=summary.world_size_is_minimum,
    )


def watch(
    given: Sequence[str],
    refresh: Callable[[Sequence[Input]], ClusterOutcome],
    *,
    interval_s: float = 5.0,
    note: Callable[[str], None] = lambda _: None,
) -> Iterator[ClusterOutcome]:
    """Yield the outcome of `refresh` for each change of the inputs, until all ranks are read.

    A file is used once its size and time were the same in two searches, so that files which are
    still being written are left for later. Arguments are those of `build`; `refresh` builds the run
    from the inputs, and `note` is called with the reason why nothing can be read yet.

    Raises:
        UprofError: As `build`, except if no rank can be read yet.
    """
    seen: set[tuple[str, str]] = set()
    built: set[tuple[str, str]] = set()
    waiting = ""
    while True:
        inputs, errors = inputs_of(given)
        why = "; ".join(str(error) for _, error in errors)
        if why and why != waiting:  # the job may not have written anything yet
            note(f"waiting for recordings: {why}")
        waiting = why
        now = {(one.location, one.content) for one in inputs}
        settled = [one for one in inputs if (one.location, one.content) in seen]
        names = {(one.location, one.content) for one in settled}
        if settled and names != built:
            built = names
            try:
                outcome = refresh(settled)
            except StoreError as err:
                note(f"waiting for recordings: {err}")
            else:
                yield outcome
                if outcome.is_complete and not outcome.world_size_is_minimum and names == now:
                    return
        seen = now
        time.sleep(interval_s)


def summary_of(given: Sequence[str], *, progress: Progress = lambda _: None) -> RunSummary:
    """Return the summary of all ranks that `given` specifies, without writing files.

    Raises UprofError if no rank can be read, or two files belong to the same rank.
    """
    inputs, lost = _inputs(given, progress)
    with executors.open_executor(jobs=_jobs(inputs)) as pool:
        found = map_inputs(inputs, None, pool, progress=progress)
    return _summary(found, [one.partial for one in found if one.partial is not None], lost)


def combine(
    inputs: Sequence[Input],
    found: list[RankFile],
    folder: StorageDirectory,
    pool: WorkerPool,
    lost: Sequence[RankFile] = (),
    progress: Progress = lambda _: None,
) -> tuple[list[RankFile], RunSummary]:
    """Return the ranks and their summary; damaged partials are created again once.

    If the run does not fit in memory, only the first steps of each rank are loaded. `pool` creates
    damaged partials again; `lost` are inputs that could not be opened. Raises UprofError if no rank
    can be read.
    """
    read, damaged = read_partials(found, folder, pool)
    if damaged:
        for name in damaged:
            folder.remove(name)
        found = map_inputs(inputs, folder, pool, progress=progress)
        read, damaged = read_partials(found, folder, pool)
        if damaged:
            raise StoreError(f"{damaged[0]} is damaged again", slug="damaged-file")
    pool.release_idle()
    names = {one.rank: one.name for one in found if one.rank is not None and one.name is not None}
    return found, _summary(found, read, lost, distributed_sums(read, names, folder, pool))


def _jobs(inputs: Sequence[Input]) -> int | None:
    return 1 if len(inputs) < _MIN_RANKS_FOR_PROCESSES else None


def _inputs(given: Sequence[str], progress: Progress) -> tuple[list[Input], list[RankFile]]:
    """Return all inputs; arguments without an input are returned as unreadable ranks."""
    inputs, errors = inputs_of(given, progress)
    if not inputs and errors:
        raise errors[0][1]
    return inputs, [
        RankFile(rank_in(text), text, why=str(error).removeprefix(f"{text}: "), hint=error.hint)
        for text, error in errors
    ]


def refuse_others(run: StorageDirectory, *, force: bool) -> None:
    """Raise OutputError if the target contains files that are not part of a run."""
    if run.is_remote:
        return
    path = local_path(run.location)
    if path.exists() and not path.is_dir():
        raise OutputError(
            f"{path} is a file, expected a directory for the run", slug="wrong-output-place"
        )
    if force or not path.is_dir():
        return
    ours = {SUMMARY_FILE_NAME, PARTIALS_DIRECTORY}
    with system_errors(OutputError, f"cannot list {path}", slug="cannot-read"):
        others = sorted(entry.name for entry in path.iterdir() if not entry.name.startswith("."))
    if others and not ours & set(others):
        raise OutputError(
            f"{path} contains {others[0]} and is not a run written by uprof",
            hint="choose another directory, or use --force to write into this one",
            slug="foreign-output",
        )
    if SUMMARY_FILE_NAME in others:
        _refuse_foreign(path / SUMMARY_FILE_NAME)


def _refuse_foreign(file: Path) -> None:
    """Raise OutputError if `file` is a valid database, but not a summary of a known revision."""
    try:
        found = detect(file)
    except UprofError:
        return
    if found.family != CLUSTER:
        raise OutputError(
            f"{file} is {found.description}, not a summary written by uprof",
            hint="choose another directory, or use --force to overwrite it",
            slug="foreign-output",
        )
    if found.revision is None:
        raise SchemaVersionError(
            f"{file} has an unknown schema revision: {found.description}",
            hint="use the version of uprof that wrote it, choose another directory, or use "
            "--force to overwrite it",
            slug="unknown-schema",
        )


def _existing_outcome(run: StorageDirectory, made_of: str) -> ClusterOutcome | None:
    """Return the outcome stored in the existing summary if it was built from the same partials."""
    if SUMMARY_FILE_NAME not in run.names():
        return None
    try:
        with fetch(run.at(SUMMARY_FILE_NAME)) as path, open_report(path) as report:
            run_facts = dict(report.rows("SELECT name, value FROM UPROF_RUN"))
            if run_facts.get(_MADE_OF) != made_of:
                return None
            facts = {
                str(name): json.loads(str(value))
                for name, value in report.rows("SELECT name, value FROM META_DATA")
                if name in _OUTCOME_FACTS
            }
            bad = list(report.rows("SELECT rank, file, why, status FROM RANK ORDER BY rank"))
            findings = list(report.rows("SELECT text FROM FINDING ORDER BY place"))
    except (UprofError, ValueError, KeyError, RecursionError):
        return None
    unread = [
        UnreadableRecording(str(file), str(why), int(str(rank)))
        for rank, file, why, status in bad
        if status == "failed"
    ]
    unread += [UnreadableRecording(one["file"], one["why"]) for one in facts["unnumbered"]]
    return ClusterOutcome(
        run.location,
        facts["world_size"],
        facts["ranks_read"],
        0,
        tuple(facts["steps"]),
        tuple(int(str(rank)) for rank, _, _, status in bad if status == "absent"),
        tuple(unread),
        tuple(str(text) for (text,) in findings),
        already=True,
        world_size_is_minimum=facts["world_size_is_minimum"],
    )


def _summary(
    found: Sequence[RankFile],
    read: Sequence[Partial],
    lost: Sequence[RankFile],
    sums: Callable[[SequenceMatch], Iterable[KeySums]] | None = None,
) -> RunSummary:
    ranks = {one.facts.rank for one in read}
    sizes = [one.facts.world_size for one in read if one.facts.world_size]
    absent = sorted(set(range(max(set(sizes), key=sizes.count))) - ranks) if sizes else []
    unread: list[UnreadableRecording] = []
    taken = set(ranks)
    for one in assign_ranks([*(one for one in found if one.why is not None), *lost], absent):
        if one.rank in taken:  # a damaged copy of a rank that was read
            one = replace(one, rank=None)
        elif one.rank is not None:
            taken.add(one.rank)
        unread.append(UnreadableRecording(one.location, one.why or "", one.rank, one.hint))
    where = {
        one.rank: PartialSource(one.location, one.name)
        for one in found
        if one.rank is not None and one.why is None
    }
    from unified_prof.cluster.summary import summarize_run  # not needed if there is nothing new

    return summarize_run(read, where, unread, sums=sums)


def _write(run: StorageDirectory, summary: RunSummary, made_of: str) -> None:
    facts = {"tool": f"uprof {VERSION}", "command": _COMMAND, _MADE_OF: made_of}
    with ExitStack() as resources:
        folder: Path
        if run.is_remote:
            folder = resources.enter_context(temporary_folder())
        else:
            folder = local_path(run.location)
        skyline_writer.write_cluster_summary(
            folder / SUMMARY_FILE_NAME,
            summary.tables,
            facts,
            dict(summary.left_out.items()),
            overwrite=True,
        )
        if run.is_remote:
            run.write(SUMMARY_FILE_NAME, (folder / SUMMARY_FILE_NAME).read_bytes())
