"""The one seam to whoever does the work: this process, processes of this machine, or Dask's.

`open_executor` gives a `concurrent.futures.Executor`; `each` does a function for many items on it
and yields results as they come. Neither knows what is done.
"""

from __future__ import annotations

import os
import re
import time
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Generic, TypeVar

from unified_prof.errors import EngineError, UsageError
from unified_prof.pipeline.executors.processes import Crew, Failure, Here, WorkerDied

__all__ = ["Crew", "Failure", "WorkerDied", "cpus", "each", "open_executor", "refuse_wrong"]

Item = TypeVar("Item")
Result = TypeVar("Result")

_QUIET_S = 2.0
"""After so long without a result, the executor is asked whether there can be one."""

_MOST_TOGETHER = 32
"""Items of one task: so many are done again when the process of one of them dies."""

_LOCAL = re.compile(r"local(?::(?P<count>[1-9]\d{0,3}))?\Z")
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://[^\s/]+:\d{1,5}/?\Z")


def _on_this_machine(count: int) -> Crew:
    if count == 1:
        return Here()
    # What starts processes takes a while to import, and one recording needs none.
    from unified_prof.pipeline.executors.processes import Processes

    return Processes(count)


def cpus() -> int:
    """Return how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def refuse_wrong(wish: str | None) -> None:
    """Raise UsageError for what `open_executor` would not understand; nothing is connected to."""
    if wish is None or _LOCAL.match(wish) or _ADDRESS.match(wish):
        return
    if not wish.endswith(".json"):
        raise UsageError(
            f"{wish!r} is not a scheduler",
            hint="expected tcp://HOST:PORT, the FILE.json of `dask scheduler "
            "--scheduler-file`, or local:N for N Dask processes on this machine",
            slug="wrong-scheduler",
        )
    if not Path(wish).is_file():
        raise UsageError(
            f"{wish}: no such file",
            hint="write it with `dask scheduler --scheduler-file FILE.json`",
            slug="no-such-file",
        )


@contextmanager
def open_executor(
    wish: str | None = None,
    *,
    jobs: int | None = None,
    tell: Callable[[str], None] = lambda _: None,
    verbose: bool = False,
) -> Iterator[Crew]:
    """Yield the executor that the user wishes for; at the end of the block nothing of it is left.

    Args:
        wish: None for this machine; `local:N` for Dask with N processes on this machine;
            `tcp://HOST:PORT` or `FILE.json` for a scheduler of Dask that runs.
        jobs: For this machine: how many processes; 1 is this process itself, None one for each
            processor.
        tell: Told in a few words what is odd.
        verbose: Whether Dask may log.

    Raises:
        UsageError: the wish cannot be meant.
        EngineError: Dask is not installed, nobody answers, or other versions do.
    """
    refuse_wrong(wish)
    if wish is None:
        count = cpus() if jobs is None else jobs
        with _on_this_machine(count) as crew:
            yield crew
        return
    from unified_prof.pipeline.executors import dask_crew

    if (local := _LOCAL.match(wish)) is not None:
        opened = dask_crew.on_this_machine(int(local["count"] or cpus()), verbose=verbose)
    else:
        opened = dask_crew.of_scheduler(wish, tell, verbose=verbose)
    with opened as dask:
        yield dask


def each(
    crew: Crew,
    function: Callable[[Item], Result],
    items: Iterable[Item],
    *,
    again: Callable[[Item], Item] = lambda item: item,
) -> Generator[tuple[Item, Result | Failure], None, None]:
    """Yield (item, its result) in the order in which results come.

    An item whose process died is tried once more, alone, when all others are done; if that process
    ends as well, its result is a `Failure`. Items are taken as they can be done: there may be more
    than fit into memory.

    Args:
        crew: Who does it.
        function: At the top of its module; it and the items go to others by pickling.
        items: Arguments of the function.
        again: Returns the item to do in place of one whose process died: it may have died when
            all was done but for saying so.

    Raises:
        EngineError: there is nobody left to do it; what was yielded is done.
        RuntimeError: the function raised, with its traceback; all other items were done first.
    """
    faults: list[str] = []
    rounds = _Rounds(crew, function, faults)
    yield from rounds.finished(((item, item) for item in items), crew.task_s)
    neighbours, rounds.together = rounds.together, []
    yield from rounds.finished((item, again(item)) for item in neighbours)
    for item in rounds.alone:
        crew.rest()
        yield from rounds.finished([(item, again(item))], last=True)
    if faults:
        raise RuntimeError(f"{len(faults)} task(s) failed; the first:\n{faults[0]}")


@dataclass(frozen=True, slots=True)
class _Raised:
    """What the function raised, in the process where it did."""

    traceback: str


@dataclass(slots=True)
class _Rounds(Generic[Item, Result]):
    """Goes through items, and keeps those whose process died for another round."""

    crew: Crew
    function: Callable[[Item], Result]
    faults: list[str]
    together: list[Item] = field(default_factory=list)
    """Lost with others in one task: which of them it was is not known."""
    alone: list[Item] = field(default_factory=list)
    """Lost as the only one of a task."""

    def finished(
        self, pairs: Iterable[tuple[Item, Item]], task_s: float = 0.0, *, last: bool = False
    ) -> Iterator[tuple[Item, Result | Failure]]:
        """Yield (item, result) of pairs (item, what to do for it)."""
        for batch, answer in _in_batches(self.crew, self.function, pairs, task_s):
            if not isinstance(answer, WorkerDied):
                for item, result in zip(batch, answer, strict=True):
                    if isinstance(result, _Raised):
                        self.faults.append(result.traceback)
                    else:
                        yield item, result
            elif last:
                yield batch[0], Failure(str(answer))
            else:
                (self.together if len(batch) > 1 else self.alone).extend(batch)


def _in_batches(
    crew: Crew,
    function: Callable[[Item], Result],
    pairs: Iterable[tuple[Item, Item]],
    task_s: float,
) -> Iterator[tuple[list[Item], list[Result | _Raised] | WorkerDied]]:
    """Keep so many tasks in flight as the crew likes, and yield each when it is done.

    A task is one item until it is known how long one takes; then as many as take `task_s`.
    """
    coming = iter(pairs)
    under_way: dict[Future[Any], list[Item]] = {}
    size, seconds, count = 1, 0.0, 0
    more = True
    try:
        while more or under_way:
            while more and len(under_way) < crew.in_flight():
                batch = list(islice(coming, size))
                more = len(batch) == size
                if batch:
                    future = crew.submit(_do, function, [todo for _, todo in batch])
                    under_way[future] = [item for item, _ in batch]
            done, _ = wait(under_way, _QUIET_S, FIRST_COMPLETED)
            if under_way and not done:
                crew.check()
            for future in done:
                items = under_way.pop(future)
                answer, took_s = _answer(crew, future)
                if not isinstance(answer, WorkerDied):
                    seconds, count = seconds + took_s, count + len(items)
                    size = max(1, min(_MOST_TOGETHER, int(task_s * count / (seconds + 1e-9))))
                yield items, answer
    finally:
        for future in under_way:
            future.cancel()


def _answer(crew: Crew, future: Future[Any]) -> tuple[Any, float]:
    """Return what came of a task and how long it took.

    Raises:
        EngineError: it was given up, and so will be all others.
    """
    if future.cancelled():
        crew.check()
        raise EngineError("a task was cancelled from outside", slug="cancelled")
    err = future.exception()
    if isinstance(err, WorkerDied):
        return err, 0.0
    if err is not None:
        raise err
    results, seconds = future.result()
    return results, seconds


def _do(
    function: Callable[[Item], Result], items: Sequence[Item]
) -> tuple[list[Result | _Raised], float]:
    """Do some items one after the other, where the work is done; an exception costs its item.

    How long they took is told by the processor: on a busy machine the clock would make tasks small.
    """
    results: list[Result | _Raised] = []
    begun = time.process_time()
    for item in items:
        try:
            results.append(function(item))
        except Exception:
            results.append(_Raised(traceback.format_exc()))
    return results, time.process_time() - begun
