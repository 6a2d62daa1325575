"""Creates the partials of a cluster run, one per rank, in any worker process.

A partial is named after the content of its input, so that a later call creates only missing ones.
An unreadable input becomes a rank with an error text instead of an exception, so that the other
ranks are still analyzed.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, structs

from unified_prof.cluster import rank_partial as partials
from unified_prof.cluster.rank_partial import OPERATIONS_IN_MEMORY, Partial
from unified_prof.cluster.sequences import SharedColumns, sequences_of
from unified_prof.errors import StoreError, UprofError, UsageError
from unified_prof.pipeline.cluster_inputs import Input, Local, host_in, resolved
from unified_prof.pipeline.executors import Failure, WorkerPool, map_unordered
from unified_prof.pipeline.executors.processes import InlinePool
from unified_prof.pipeline.remote import StorageDirectory, fetch
from unified_prof.schema.catalogue import MSPROF
from unified_prof.sqlite.atomic import temporary_folder
from unified_prof.sqlite.opening import detect

if TYPE_CHECKING:
    from unified_prof.cluster.matching import SequenceMatch
    from unified_prof.cluster.waits import KeyMembers, KeySums

Progress = Callable[[str], None]

_NAME = re.compile(
    r"(?P<rank>\d+)-(?P<content>[0-9a-f]{20})-v(?P<version>\d+)-(?P<count>\d+)\.parquet\Z"
)
# Maximum number of operations of a partial that workers return in memory. The file of a larger
# partial is so much smaller that reading it is faster.
_MAX_RETURNED_OPERATIONS = 2_000
# Last bytes of a Parquet file; they may be missing after a crash of the machine.
_PARQUET_END = b"PAR1"


class RankFile(Struct, frozen=True):
    """One rank of an input with its partial, or the reason why the partial is missing."""

    rank: int | None  # None if unknown because nothing could be read.
    location: str
    name: str | None = None  # File name of the partial.
    why: str | None = None  # Reason why the input could not be read.
    hint: str | None = None
    partial: Partial | None = None  # The partial, if it is not stored, or is new and small.
    is_new: bool = False  # True if the partial was created by this call.


# A rank, and its partial as Parquet if the worker does not write it.
_Mapped = tuple[RankFile, bytes | None]


class _Task(Struct, frozen=True):
    """One input for a worker."""

    input: Input
    folder: str | None  # Directory to which the worker writes partials; None if it returns them.
    as_bytes: bool  # True if the worker encodes partials as Parquet.
    # Partials with at most this many operations are also returned in memory.
    max_operations: int = 0


def map_inputs(
    inputs: Sequence[Input],
    folder: StorageDirectory | None,
    pool: WorkerPool,
    *,
    force: bool = False,
    progress: Progress = lambda _: None,
) -> list[RankFile]:
    """Create the missing partials, and return the ranks of all inputs by number.

    If `folder` is None, partials are kept in memory, without pyarrow. If `force`, all are created
    again.

    Raises:
        UsageError: Two inputs belong to the same rank, or pyarrow is not installed.
        EngineError: No worker is left; finished partials are kept.
        OutputError: The folder cannot be written.
    """
    ranks: list[RankFile] = []
    todo = list(inputs)
    if folder is not None:
        _refuse_without_parquet()
        folder.tidy()
        stored = {} if force else _stored_partials(folder)
        todo = [one for one in inputs if one.content not in stored]
        for one in inputs:
            for rank, name in stored.get(one.content, ()):
                ranks.append(RankFile(rank, one.location, name))
    elsewhere = folder is not None and folder.is_remote
    limit = OPERATIONS_IN_MEMORY // max(len(inputs), 1)
    if not isinstance(pool, InlinePool):
        limit = min(limit, _MAX_RETURNED_OPERATIONS)
    tasks = (
        _Task(one, folder.location if elsewhere and folder else None, folder is not None, limit)
        for one in todo
    )
    for done, (task, result) in enumerate(map_unordered(pool, _do, tasks), start=1):
        ranks.extend(_store(task.input, result, folder))
        progress(f"{done} of {len(todo)} ranks read")
    ranks.sort(key=lambda one: (one.rank is None, one.rank or 0, one.location))
    _refuse_twice(ranks)
    return ranks


def name_of(rank: int, content: str, count: int) -> str:
    """Return the file name for the partial of a rank; its input has `count` partials."""
    return f"{rank:05d}-{content}-v{partials.PARTIAL_VERSION}-{count}.parquet"


def read_partials(
    found: Sequence[RankFile], folder: StorageDirectory, pool: WorkerPool
) -> tuple[list[Partial], list[str]]:
    """Return the partials of ranks with their first steps, and the names of damaged ones.

    Workers on other machines read them, and send only the first steps, if they see the directory.
    """
    limit = OPERATIONS_IN_MEMORY // max(len(found), 1)
    read: list[Partial] = []
    todo: list[_Stored] = []
    for one in found:
        if (partial := one.partial) is not None and partial.operations <= limit:
            read.append(partial)
        elif one.name is not None:
            todo.append(_Stored(folder, one.name, limit))
    if pool.is_distributed:
        answers = [*map_unordered(pool, _read_on_worker, todo)]
        todo = [stored for stored, answer in answers if not isinstance(answer, Partial)]
        read += [answer for _, answer in answers if isinstance(answer, Partial)]
    damaged: list[str] = []
    shared = SharedColumns()
    for stored in todo:
        try:
            read.append(stored.first_steps(shared, whole=True))
        except StoreError:
            damaged.append(stored.name)
    return read, damaged


class _Stored(Struct, frozen=True):
    """A partial of which at most `limit` operations, but at least one step, are needed."""

    folder: StorageDirectory
    name: str
    limit: int

    def first_steps(self, shared: SharedColumns | None = None, *, whole: bool) -> Partial:
        read = functools.partial(self.folder.read, self.name)
        return partials.read_first_steps(read, self.name, self.limit, shared, whole=whole)


def _read_on_worker(stored: _Stored) -> Partial | None:
    """Return a partial; None if it is damaged, or not visible on the machine of the worker."""
    try:
        return stored.first_steps(whole=False)
    except UprofError:
        return None


def distributed_sums(
    read: Sequence[Partial], names: Mapping[int, str], folder: StorageDirectory, pool: WorkerPool
) -> Callable[[SequenceMatch], Iterable[KeySums]] | None:
    """Return a function that computes the sums of a run by communication group on the workers.

    No process then holds the operations of more than one group. The result is the same as that of
    one process. Returns None if all operations of the partials were read into this process.
    """
    if all(one.held is None or one.held.whole.columns for one in read):
        return None

    def sums(matched: SequenceMatch) -> Iterator[KeySums]:
        keys = keys_of(matched)
        groups: dict[int, list[int]] = {}
        for at, key in enumerate(keys):
            # Sends and receives, which have no group, by the lower of their ranks.
            group = key.first if key.first >= 0 else -1 - min(rank for rank, *_ in key.members)
            groups.setdefault(group, []).append(at)
        tasks = []
        for places in groups.values():
            members = {rank for at in places for rank, *_ in keys[at].members}
            stored = {rank: names[matched.ranks[rank]] for rank in sorted(members)}
            tasks.append(_SumTask(folder, stored, tuple((at, keys[at]) for at in places)))
        found: dict[int, KeySums] = {}
        for task, answer in map_unordered(pool, _sum_if_readable, tasks):
            found |= answer if isinstance(answer, dict) else _sum(task)
        for at in range(len(keys)):
            yield found.pop(at)

    from unified_prof.cluster.waits import keys_of

    return sums


class _SumTask(Struct, frozen=True):
    """Keys of events of one group, and the partials of its ranks."""

    folder: StorageDirectory
    names: Mapping[int, str]
    keys: tuple[tuple[int, KeyMembers], ...]


def _sum_if_readable(task: _SumTask) -> dict[int, KeySums] | None:
    try:
        return _sum(task)
    except UprofError:
        return None


def _sum(task: _SumTask) -> dict[int, KeySums]:
    """Return the sums of the keys of a task, reading one rank after the other."""
    from unified_prof.cluster.waits import sum_key

    needed: dict[int, list[int]] = {}
    for _, key in task.keys:
        for rank, place, _ in key.members:
            needed.setdefault(rank, []).append(place)
    sequences = {}
    for rank, name in task.names.items():
        table, kinds = partials.read_communication(task.folder.read(name), name)
        sequences[rank] = sequences_of(table, kinds).whole.only(needed[rank])
    return {at: sum_key(key, sequences.__getitem__) for at, key in task.keys}


def assign_ranks(failed: Iterable[RankFile], absent: Sequence[int]) -> list[RankFile]:
    """If exactly one input is unreadable and one rank is missing, assign that rank to the input."""
    result = list(failed)
    unnumbered = [one for one in result if one.rank is None]
    missing = sorted(set(absent) - {one.rank for one in result if one.rank is not None})
    if len(unnumbered) == len(missing) == 1:
        result[result.index(unnumbered[0])] = structs.replace(unnumbered[0], rank=missing[0])
    return result


def _stored_partials(folder: StorageDirectory) -> dict[str, list[tuple[int, str]]]:
    """Return content -> (rank, file name) for inputs whose partials are all stored."""
    found: dict[str, list[tuple[int, str, int]]] = {}
    for name in folder.names():
        match = _NAME.match(name)
        if (
            match is not None
            and int(match["version"]) == partials.PARTIAL_VERSION
            and folder.ends_with(name, _PARQUET_END)
        ):
            entry = (int(match["rank"]), name, int(match["count"]))
            found.setdefault(match["content"], []).append(entry)
    return {
        content: [(rank, name) for rank, name, _ in entries]
        for content, entries in found.items()
        if all(count == len(entries) for _, _, count in entries)
    }


def _store(
    one: Input, result: list[_Mapped] | Failure, folder: StorageDirectory | None
) -> list[RankFile]:
    """Write the partials that a worker returned, and return the ranks of its input."""
    if isinstance(result, Failure):
        why = f"the process that read it {result} twice"
        return [RankFile(one.likely_rank, one.location, why=why)]
    for file, data in result:
        if data is not None:
            assert folder is not None and file.name is not None  # noqa: PT018
            folder.write(file.name, data, durable=False)
    return [file for file, _ in result]


def _refuse_twice(ranks: Sequence[RankFile]) -> None:
    read = [one for one in ranks if one.why is None]
    twice = [(before, after) for before, after in pairwise(read) if before.rank == after.rank]
    if not twice:
        return
    before, after = twice[0]
    more = len({one.rank for one, _ in twice}) - 1
    others = f"; {more:,} more ranks also have two files" if more else ""
    hint = "use RANK=FILE to set the rank of a file"
    if more and (folders := _folders(before.location, after.location)) is not None:
        hint = f"pass only {folders[0]} or {folders[1]}"
    raise UsageError(
        f"rank {after.rank} has two files: {before.location} and {after.location}{others}",
        hint=f"pass only one of them; {hint}" if not more else hint,
        slug="rank-twice",
    )


def _folders(one: str, other: str) -> tuple[str, str] | None:
    """Return the first directories in which two paths differ; None if only file names differ."""
    ours, theirs = one.split("/"), other.split("/")
    at = next((at for at, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), 0)
    if not at or at + 1 >= min(len(ours), len(theirs)):
        return None
    return "/".join(ours[: at + 1]), "/".join(theirs[: at + 1])


def _refuse_without_parquet() -> None:
    from importlib.util import find_spec

    if find_spec("pyarrow") is None:
        raise UsageError(
            "writing partials of a cluster run needs pyarrow",
            hint="run `pip install 'unified-prof[cluster]'`",
            slug="missing-package",
        )


def _do(task: _Task) -> list[_Mapped]:
    """Create the partials of one input; errors are returned as the reason.

    An unrelated database in a directory of recordings has no ranks.
    """
    one = task.input
    paths = [one.location]
    try:
        with ExitStack() as resources:
            path = resources.enter_context(fetch(one.remote or one.location))
            found = resolved(path)
            paths += [str(local.path) for local in found]
            made = [
                partial for local in found for partial in _partials(local, one, resources, paths)
            ]
            return [_mapped(partial, task, len(made)) for partial in made]
    except _NoRank:
        return []
    except UprofError as err:
        why, hint = _without_paths(paths, str(err)), err.hint
    except Exception as err:  # a bug in uprof, or an unexpected file
        why, hint = f"unexpected error: {type(err).__name__}: {err}"[:500], None
    return [(RankFile(one.likely_rank, one.location, why=why, hint=hint), None)]


class _NoRank(Exception):  # noqa: N818 (not an error)
    """Raised for a database that is not a report of a rank."""


def _partials(local: Local, one: Input, resources: ExitStack, paths: list[str]) -> list[Partial]:
    """Return the partials of one database or recording; add a converted database to `paths`."""
    database = local.path
    if local.source is not None:
        from unified_prof.pipeline.convert import convert

        folder: Path = resources.enter_context(temporary_folder())
        database = folder / "rank.db"
        paths.append(str(database))
        convert(local.path, database, source=local.source)
    try:
        made = _partials_of_input(database, one)
    except StoreError:
        if local.source is None and _is_other_database(database, named=one.likely_rank is not None):
            raise _NoRank from None
        raise
    host = host_in(one.location)  # for recordings that do not contain it
    return [
        partial
        if partial.facts.host is not None
        else replace(partial, facts=replace(partial.facts, host=host))
        for partial in made
    ]


def partials_of(database: Path, rank: int | None = None) -> list[Partial]:
    """Return the partials of a database; the reader is imported on first use."""
    from unified_prof.cluster import rank_map

    return rank_map.read_partials(database, rank)


def _partials_of_input(database: Path, one: Input) -> list[Partial]:
    """Return the partials of a database, with ranks from the user, the database or its name."""
    if one.rank is not None:
        return partials_of(database, one.rank)
    try:
        return partials_of(database)
    except StoreError:
        if one.likely_rank is None:
            raise
        return partials_of(database, one.likely_rank)


def _is_other_database(database: Path, *, named: bool) -> bool:
    """Return True if a valid database is not a report of a rank and can be ignored.

    A database of another tool whose name contains a rank is not ignored but reported as unreadable.
    """
    try:
        found = detect(database)
    except UprofError:
        return False
    return not named if found.family is None else found.family != MSPROF


def _mapped(partial: Partial, task: _Task, count: int) -> _Mapped:
    """Return the rank of a partial; write the partial if the worker does."""
    rank, location = partial.facts.rank, task.input.location
    if not task.as_bytes:
        return RankFile(rank, location, partial=partial, is_new=True), None
    name = name_of(rank, task.input.content, count)
    data = partials.partial_to_parquet(partial)
    if task.folder is not None:
        StorageDirectory(task.folder).write(name, data)
    back = partial if partial.operations <= task.max_operations else None
    file = RankFile(rank, location, name, partial=back, is_new=True)
    return file, data if task.folder is None else None


def _without_paths(paths: Sequence[str], text: str) -> str:
    """Remove paths from a message that is shown next to the file name."""
    for path in paths:
        text = text.removeprefix(f"{path}: ").replace(path, "its file")
    return text
