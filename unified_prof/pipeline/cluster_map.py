"""From the inputs of a run to one partial a rank, whoever does the work and whatever is broken.

A partial is named by what it was made of: a second call makes only what lacks, and so does one
that goes on after the first was stopped. What cannot be used is a rank with a reason, never an
exception: the others' answer stands without it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from unified_prof.cluster import rank_partial as partials
from unified_prof.cluster.rank_partial import OPERATIONS_IN_MEMORY, Partial
from unified_prof.errors import StoreError, UprofError, UsageError
from unified_prof.pipeline.cluster_inputs import Input, Local, host_in, resolved
from unified_prof.pipeline.executors import Failure, WorkerPool, map_unordered
from unified_prof.pipeline.executors.processes import InlinePool
from unified_prof.pipeline.remote import StorageDirectory, fetch
from unified_prof.sqlite.atomic import temporary_folder

Progress = Callable[[str], None]

_NAME = re.compile(
    r"(?P<rank>\d+)-(?P<content>[0-9a-f]{20})-v(?P<version>\d+)-(?P<count>\d+)\.parquet\Z"
)
_WORTH_THE_WAY = 2_000
"""Operations of a partial that goes to another process as it is: of more, its file is so much
smaller that reading it again costs less, and between machines nothing else is to travel."""
_END = b"PAR1"
"""How a Parquet file ends; after a machine went down, one on its disk may not."""


@dataclass(frozen=True, slots=True)
class RankFile:
    """What became of one rank of one input."""

    rank: int | None
    """None: not known, for nothing could be read."""
    location: str
    name: str | None = None
    """Of its partial; None: it has none."""
    why: str | None = None
    """Why it has none."""
    hint: str | None = None
    """What to do about that."""
    partial: Partial | None = None
    """It itself, where there is no folder for it, and where it was made now and is not large."""
    is_new: bool = False
    """Whether it was made now."""


@dataclass(frozen=True, slots=True)
class _Task:
    """One input, as it goes to whoever opens it."""

    input: Input
    folder: str | None
    """Where partials are written by whoever makes them; None: they come back."""
    as_bytes: bool
    most: int = 0
    """Partials of so many operations come back as they are, besides: read again they cost more."""


@dataclass(frozen=True, slots=True)
class _Mapped:
    """What came of it."""

    partials: tuple[tuple[int, bytes | None, Partial | None], ...] = ()
    why: str | None = None
    hint: str | None = None
    is_rank: bool = True
    """False: it is something else that lay in the folder."""


def mapped(
    inputs: Sequence[Input],
    folder: StorageDirectory | None,
    pool: WorkerPool,
    *,
    force: bool = False,
    progress: Progress = lambda _: None,
) -> list[RankFile]:
    """Return one entry for each rank of each input, by rank; make the partials that lack.

    Args:
        inputs: Recordings and databases.
        folder: Where partials are kept; None: they are kept in memory, which needs no package.
        pool: Who does the work.
        force: Make all anew.
        progress: Told in a few words what is going on.

    Raises:
        UsageError: two inputs are of the same rank; pyarrow is not installed.
        EngineError: there is nobody left to do the work; partials that were made are kept.
        OutputError: the folder cannot be written to.
    """
    ranks: list[RankFile] = []
    todo = list(inputs)
    if folder is not None:
        _refuse_without_parquet()
        folder.tidy()
        there = {} if force else _there(folder)
        todo = [one for one in inputs if one.content not in there]
        for one in inputs:
            for rank, name in there.get(one.content, ()):
                ranks.append(RankFile(rank, one.location, name))
    elsewhere = folder is not None and folder.is_remote
    most = OPERATIONS_IN_MEMORY // max(len(inputs), 1)
    if not isinstance(pool, InlinePool):
        most = min(most, _WORTH_THE_WAY)
    tasks = (
        _Task(one, folder.location if elsewhere and folder else None, folder is not None, most)
        for one in todo
    )
    for done, (task, result) in enumerate(map_unordered(pool, _do, tasks), start=1):
        ranks.extend(_kept(task.input, result, folder))
        progress(f"{done} of {len(todo)} ranks read")
    ranks.sort(key=lambda one: (one.rank is None, one.rank or 0, one.location))
    _refuse_twice(ranks)
    return ranks


def name_of(rank: int, content: str, count: int) -> str:
    """Return the name of the partial of a rank, one of `count` that an input has."""
    return f"{rank:05d}-{content}-v{partials.PARTIAL_VERSION}-{count}.parquet"


def named(failed: Iterable[RankFile], absent: Sequence[int]) -> list[RankFile]:
    """Give what could not be read its rank: by elimination, where one rank lacks for one file."""
    result = list(failed)
    nameless = [one for one in result if one.rank is None]
    left = sorted(set(absent) - {one.rank for one in result if one.rank is not None})
    if len(nameless) == len(left) == 1:
        result[result.index(nameless[0])] = replace(nameless[0], rank=left[0])
    return result


def _there(folder: StorageDirectory) -> dict[str, list[tuple[int, str]]]:
    """Return the ranks of each content of which all partials are there, and whole."""
    found: dict[str, list[tuple[int, str, int]]] = {}
    for name in folder.names():
        match = _NAME.match(name)
        if (
            match is not None
            and int(match["version"]) == partials.PARTIAL_VERSION
            and folder.ends_with(name, _END)
        ):
            entry = (int(match["rank"]), name, int(match["count"]))
            found.setdefault(match["content"], []).append(entry)
    return {
        content: [(rank, name) for rank, name, _ in entries]
        for content, entries in found.items()
        if all(count == len(entries) for _, _, count in entries)
    }


def _kept(one: Input, result: _Mapped | Failure, folder: StorageDirectory | None) -> list[RankFile]:
    """Write what came back, and say what became of each rank."""
    if isinstance(result, Failure):
        why = f"the process that read it {result}, twice"
        return [RankFile(one.likely_rank, one.location, why=why)]
    if not result.is_rank:
        return []
    if result.why is not None:
        return [RankFile(one.likely_rank, one.location, why=result.why, hint=result.hint)]
    ranks = []
    for rank, data, partial in result.partials:
        if folder is None:
            ranks.append(RankFile(rank, one.location, partial=partial, is_new=True))
            continue
        name = name_of(rank, one.content, len(result.partials))
        if data is not None:
            folder.write(name, data, durable=False)
        ranks.append(RankFile(rank, one.location, name, partial=partial, is_new=True))
    return ranks


def _refuse_twice(ranks: Sequence[RankFile]) -> None:
    read = [one for one in ranks if one.why is None]
    twice = [(before, after) for before, after in pairwise(read) if before.rank == after.rank]
    if not twice:
        return
    before, after = twice[0]
    more = len({one.rank for one, _ in twice}) - 1
    others = f"; so {'is' if more == 1 else 'are'} {more:,} more, as of two runs" if more else ""
    hint = "RANK=FILE says of which rank a file is"
    if more and (folders := _folders(before.location, after.location)) is not None:
        hint = f"name {folders[0]} or {folders[1]}"
    raise UsageError(
        f"rank {after.rank} is there twice: {before.location} and {after.location}{others}",
        hint=f"name one of them; {hint}" if not more else hint,
        slug="rank-twice",
    )


def _folders(one: str, other: str) -> tuple[str, str] | None:
    """Return the folders that tell two recordings apart; None where their names alone do."""
    ours, theirs = one.split("/"), other.split("/")
    at = next((at for at, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), 0)
    if not at or at + 1 >= min(len(ours), len(theirs)):
        return None
    return "/".join(ours[: at + 1]), "/".join(theirs[: at + 1])


def _refuse_without_parquet() -> None:
    from importlib.util import find_spec

    if find_spec("pyarrow") is None:
        raise UsageError(
            "partials of a cluster's run are Parquet files, which needs pyarrow",
            hint="run `pip install 'unified-prof[cluster]'`",
            slug="missing-package",
        )


# ---- what is done where the input lies


def _do(task: _Task) -> _Mapped:
    """Make the partials of one input; whatever is wrong with it is its own misfortune."""
    one = task.input
    paths = [one.location]
    try:
        with ExitStack() as resources:
            path = resources.enter_context(fetch(one.elsewhere or one.location))
            found = resolved(path)
            if not found:
                return _Mapped(is_rank=False)
            paths += [str(local.path) for local in found]
            made = [
                partial for local in found for partial in _partials(local, one, resources, paths)
            ]
            return _Mapped(tuple((p.facts.rank, *_put(p, task, len(made))) for p in made))
    except _NoRank:
        return _Mapped(is_rank=False)
    except UprofError as err:
        return _Mapped(why=_without(paths, str(err)), hint=err.hint)
    except Exception as err:  # a fault of ours, or of a file that nobody thought of
        return _Mapped(why=f"it cannot be read: {type(err).__name__}: {err}"[:500])


class _NoRank(Exception):  # noqa: N818 (nothing is wrong)
    """A database of another family, which lay in the folder."""


def _partials(local: Local, one: Input, resources: ExitStack, paths: list[str]) -> list[Partial]:
    """Return the partials of one database or recording; `paths` learns what it was made into."""
    database = local.path
    if local.source is not None:
        from unified_prof.pipeline.convert import convert

        folder: Path = resources.enter_context(temporary_folder())
        database = folder / "rank.db"
        paths.append(str(database))
        convert(local.path, database, source=local.source)
    try:
        return [_with_host(partial, one.location) for partial in _told_or_named(database, one)]
    except StoreError:
        if local.source is None and _is_of_others(database, named=one.likely_rank is not None):
            raise _NoRank from None
        raise


def _with_host(partial: Partial, location: str) -> Partial:
    """Return a partial with the host of its file's name if its recording has none."""
    if partial.facts.host is not None:
        return partial
    return replace(partial, facts=replace(partial.facts, host=host_in(location)))


def partials_of(database: Path, rank: int | None = None) -> list[Partial]:
    """Return the partials of a database; what reads it is imported by whoever has one to read."""
    from unified_prof.cluster import rank_map

    return rank_map.read_partials(database, rank)


def _told_or_named(database: Path, one: Input) -> list[Partial]:
    """Return the partials of ranks as the user has it, else the database, else its name."""
    if one.rank is not None:
        return partials_of(database, one.rank)
    try:
        return partials_of(database)
    except StoreError:
        if one.likely_rank is None:
            raise
        return partials_of(database, one.likely_rank)


def _is_of_others(database: Path, *, named: bool) -> bool:
    """Tell reports of other families, and databases of other tools unless a rank names them.

    A damaged file is neither.
    """
    from unified_prof.schema.catalogue import MSPROF
    from unified_prof.sqlite.detect import detect

    try:
        found = detect(database)
    except UprofError:
        return False
    return not named if found.family is None else found.family != MSPROF


def _put(partial: Partial, task: _Task, count: int) -> tuple[bytes | None, Partial | None]:
    """Return what is to be written of a partial, and it itself where it is to come back."""
    if not task.as_bytes:
        return None, partial
    back = partial if len(partial.communication["start"]) <= task.most else None
    data = partials.partial_to_parquet(partial)
    if task.folder is None:
        return data, back
    name = name_of(partial.facts.rank, task.input.content, count)
    StorageDirectory(task.folder).write(name, data)
    return None, back


def _without(paths: Sequence[str], text: str) -> str:
    """Return a message without the file, which is named beside it, or is a copy under way."""
    for path in paths:
        text = text.removeprefix(f"{path}: ").replace(path, "its file")
    return text
