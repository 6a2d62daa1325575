"""Many ranks' recordings to one run on disk: partials of each, and the summary of all.

A run is a folder: `cluster.sqlite`, and `partials/` beside it. What is there already and made of
the same inputs is left as it is, so that a call goes on where the one before was stopped.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from unified_prof.cluster import rank_partial as partials
from unified_prof.cluster.rank_partial import (
    OPERATIONS_IN_MEMORY,
    PARTIALS_DIRECTORY,
    SUMMARY_FILE_NAME,
    Columns,
    Partial,
    PartialSource,
    UnreadableRecording,
)
from unified_prof.errors import OutputError, SchemaVersionError, StoreError, UprofError
from unified_prof.pipeline import executors
from unified_prof.pipeline.cluster_inputs import Input, inputs_of, rank_in
from unified_prof.pipeline.cluster_map import Progress, RankFile, mapped, named
from unified_prof.pipeline.executors import WorkerPool
from unified_prof.pipeline.remote import StorageDirectory, fetch, local_path
from unified_prof.schema.catalogue import CLUSTER
from unified_prof.sqlite import skyline_writer
from unified_prof.sqlite.atomic import temporary_folder
from unified_prof.sqlite.detect import detect
from unified_prof.sqlite.reader import open_report
from unified_prof.version import VERSION

if TYPE_CHECKING:
    from unified_prof.cluster.summary import RunSummary

_MADE_OF = "made_of"
"""Fact of UPROF_RUN: tells whether a summary is of these very partials."""
_COMMAND = "uprof cluster build"
# Facts of META_DATA that a ClusterOutcome is made of.
_OUTCOME_FACTS = ("world_size", "world_size_is_minimum", "ranks_read", "steps", "unnumbered")


@dataclass(frozen=True, slots=True)
class ClusterOutcome:
    """What became of a run."""

    target: str
    """Its folder, or the URL of it."""
    world_size: int
    ranks_read: int
    new: int
    """Of how many ranks partials were made now."""
    steps: tuple[int, ...]
    absent: tuple[int, ...]
    unread: tuple[UnreadableRecording, ...]
    findings: tuple[str, ...]
    """One sentence each, the costliest first."""
    already: bool = False
    """Whether the summary was there, and of the same."""
    world_size_is_minimum: bool = False

    @property
    def whole(self) -> bool:
        """Whether every rank of the run was read."""
        return not self.absent and not self.unread

    @property
    def coverage(self) -> str:
        """How many of the ranks were read, and why the others were not."""
        at_least = "at least " if self.world_size_is_minimum else ""
        parts = [f"{self.ranks_read:,} of {at_least}{self.world_size:,} ranks"]
        if self.absent:
            parts.append(f"missing: {_few(map(str, self.absent))}")
        for one in self.unread[:_FEW]:
            who = f"rank {one.rank}" if one.rank is not None else one.file
            parts.append(f"{who}: {one.why}")
        if len(self.unread) > _FEW:
            parts.append(f"and {len(self.unread) - _FEW:,} more unreadable")
        return "; ".join(parts)


_FEW = 12


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
) -> ClusterOutcome:
    """Make or complete the run of all ranks that `given` names.

    Args:
        given: Databases, recordings and folders of them; patterns, URLs, `RANK=PATH`.
        target: The run's folder, here or elsewhere.
        scheduler: As `executors.open_executor` takes it.
        jobs: The same.
        force: Make everything anew.
        verbose: Whether a scheduler of Dask may log.
        progress: Told in a few words what is going on.
        note: Told what is odd.

    Raises:
        UprofError: nothing can be read; two files are of one rank; the folder is something else,
            or cannot be written; there is nobody to do the work.
    """
    executors.check_scheduler(scheduler)
    run = StorageDirectory(target)
    folder = StorageDirectory(run.at(PARTIALS_DIRECTORY))
    _refuse_others(run, force=force)
    inputs, lost = _inputs(given, progress)
    with executors.open_executor(
        scheduler, jobs=_jobs(jobs, len(inputs)), note=note, verbose=verbose
    ) as pool:
        found = mapped(inputs, folder, pool, force=force, progress=progress)
        made_of = _made_of(found, lost)
        if not force and (before := _before(run, made_of)) is not None:
            return before
        progress("combining ranks")
        found, summary = put_together(inputs, found, folder, pool, lost, progress)
    _write(run, summary, made_of)
    _remove_older(folder, found)
    return _outcome(run, summary, sum(one.is_new for one in found))


def summary_of(
    given: Sequence[str], *, jobs: int | None = None, progress: Progress = lambda _: None
) -> RunSummary:
    """Return the summary of all ranks that `given` names; nothing is written.

    Raises:
        UprofError: nothing can be read, or two files are of one rank.
    """
    inputs, lost = _inputs(given, progress)
    with executors.open_executor(jobs=_jobs(jobs, len(inputs))) as pool:
        found = mapped(inputs, None, pool, progress=progress)
    return _summary(found, [one.partial for one in found if one.partial is not None], lost)


def put_together(
    inputs: Sequence[Input],
    found: list[RankFile],
    folder: StorageDirectory,
    pool: WorkerPool,
    lost: Sequence[RankFile] = (),
    progress: Progress = lambda _: None,
) -> tuple[list[RankFile], RunSummary]:
    """Return the summary of ranks whose partials lie in a folder, and what became of each.

    Args:
        inputs: What the partials were made of, for one that turns out to be damaged.
        found: The ranks.
        folder: Where their partials are.
        pool: Who makes a damaged one anew.
        lost: What could not even be opened.
        progress: Told in a few words what is going on.

    Raises:
        UprofError: no rank can be read.
    """
    found, read = _read(inputs, found, folder, pool, progress)
    names = {one.rank: one.name for one in found if one.rank is not None and one.name is not None}
    pool.release_idle()

    def whole(rank: int) -> Columns:
        return partials.read_communication(folder.read(names[rank]), names[rank])

    return found, _summary(found, read, lost, whole)


_WORTH_PROCESSES = 64
"""So many ranks are read in this process unasked, sooner than others have started."""


def _jobs(asked: int | None, inputs: int) -> int | None:
    if asked is not None:
        return asked
    return 1 if inputs < _WORTH_PROCESSES else None


def _inputs(given: Sequence[str], progress: Progress) -> tuple[list[Input], list[RankFile]]:
    """Return all inputs, and as ranks that could not be read what names none."""
    inputs, errors = inputs_of(given, progress)
    if not inputs and errors:
        raise errors[0][1]
    return inputs, [
        RankFile(rank_in(text), text, why=str(error).removeprefix(f"{text}: "), hint=error.hint)
        for text, error in errors
    ]


def _refuse_others(run: StorageDirectory, *, force: bool) -> None:
    """Refuse to write among files that are no run's."""
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
    try:
        others = sorted(entry.name for entry in path.iterdir() if not entry.name.startswith("."))
    except OSError as err:
        raise OutputError(f"cannot list {path}: {err.strerror}", slug="cannot-read") from err
    if others and not ours & set(others):
        raise OutputError(
            f"{path} contains {others[0]} and is not a run written by uprof",
            hint="choose another directory, or use --force to write into this one",
            slug="foreign-output",
        )
    if SUMMARY_FILE_NAME in others:
        _refuse_foreign(path / SUMMARY_FILE_NAME)


def _refuse_foreign(file: Path) -> None:
    """Refuse to replace a sound database that this uprof did not make; a damaged one may go."""
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


def _made_of(found: Iterable[RankFile], lost: Iterable[RankFile]) -> str:
    """Return what is the same only for a summary of the very same."""
    rows = sorted(f"{one.rank} {one.name} {one.location} {one.why}" for one in (*found, *lost))
    text = "\n".join((VERSION, *rows))
    return hashlib.blake2b(text.encode(errors="surrogateescape"), digest_size=16).hexdigest()


def _before(run: StorageDirectory, made_of: str) -> ClusterOutcome | None:
    """Return what the summary says that is there, if it is of the very same."""
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
    except (UprofError, ValueError, KeyError):
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


def _read(
    inputs: Sequence[Input],
    found: list[RankFile],
    folder: StorageDirectory,
    pool: WorkerPool,
    progress: Progress,
) -> tuple[list[RankFile], list[Partial]]:
    """Return all partials; one that turns out to be damaged is made anew, once.

    Of a run that memory would not hold, each has its first steps alone.
    """
    read: list[Partial] = []
    most = OPERATIONS_IN_MEMORY // max(len(found), 1)
    damaged: set[str] = set()
    for one in found:
        if one.name is not None:
            try:
                whole = one.partial or partials.partial_from_parquet(
                    folder.read(one.name), one.name
                )
                read.append(partials.limit_to_first_steps(whole, most))
            except StoreError:
                damaged.add(one.location)
    if not damaged:
        return found, read
    for one in found:
        if one.location in damaged and one.name is not None:
            folder.remove(one.name)
    found = mapped(inputs, folder, pool, progress=progress)
    names = [one.name for one in found if one.name is not None]
    again = (partials.partial_from_parquet(folder.read(name), name) for name in names)
    return found, [partials.limit_to_first_steps(one, most) for one in again]


def _summary(
    found: Sequence[RankFile],
    read: Sequence[Partial],
    lost: Sequence[RankFile],
    whole: Callable[[int], Columns] | None = None,
) -> RunSummary:
    ranks = {one.facts.rank for one in read}
    sizes = [one.facts.world_size for one in read if one.facts.world_size]
    absent = sorted(set(range(max(set(sizes), key=sizes.count))) - ranks) if sizes else []
    unread: list[UnreadableRecording] = []
    taken = set(ranks)
    for one in named([*(one for one in found if one.why is not None), *lost], absent):
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
    from unified_prof.cluster.summary import summarize_run  # not needed where there is nothing new

    until = [one.until for one in read if one.until is not None]
    if not until:
        return summarize_run(read, where, unread)
    return summarize_run(read, where, unread, read=whole, until=min(until))


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


def _remove_older(folder: StorageDirectory, found: Iterable[RankFile]) -> None:
    """Remove partials of ranks of which there are newer ones."""
    used = {one.name for one in found if one.name is not None}
    anew = {f"{one.rank:05d}" for one in found if one.is_new}
    for name in folder.names() if anew else ():
        if name not in used and name.partition("-")[0] in anew:
            folder.remove(name)


def _outcome(run: StorageDirectory, summary: RunSummary, new: int) -> ClusterOutcome:
    return ClusterOutcome(
        run.location,
        summary.world_size,
        summary.ranks_read,
        new,
        summary.steps,
        summary.absent,
        summary.unread,
        tuple(one.text for one in summary.findings),
        world_size_is_minimum=summary.world_size_is_minimum,
    )


def _few(words: Iterable[str]) -> str:
    every = list(words)
    more = f" and {len(every) - _FEW:,} more" if len(every) > _FEW else ""
    return ", ".join(every[:_FEW]) + more
