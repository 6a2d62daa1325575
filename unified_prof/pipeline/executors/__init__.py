"""Runs a function for many items: in this process, in local processes, or on workers of Dask.

`open_executor` yields a `concurrent.futures.Executor`; `map_unordered` runs a function for many
items on it and yields the results as they come.
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
from unified_prof.pipeline.executors.processes import (
    Failure,
    InlinePool,
    ProcessPool,
    WorkerDied,
    WorkerPool,
)

__all__ = [
    "Failure",
    "WorkerDied",
    "WorkerPool",
    "check_scheduler",
    "cpus",
    "map_unordered",
    "open_executor",
]

Item = TypeVar("Item")
Result = TypeVar("Result")

# Time without a result after which the executor is asked whether results can still come.
_CHECK_INTERVAL_S = 2.0
# Maximum items of one task; if its process dies, all of them are run again.
_MAX_BATCH = 32

_LOCAL = re.compile(r"local(?::(?P<count>[1-9]\d{0,3}))?\Z")
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://[^\s/]+:\d{1,5}/?\Z")


def cpus() -> int:
    """Return how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def check_scheduler(scheduler: str | None) -> None:
    """Raise UsageError if `open_executor` does not accept the scheduler; connects to nothing."""
    if scheduler is None or _LOCAL.match(scheduler) or _ADDRESS.match(scheduler):
        return
    if not scheduler.endswith(".json"):
        raise UsageError(
            f"{scheduler!r} is not a scheduler",
            hint="expected tcp://HOST:PORT, the FILE.json of `dask scheduler "
            "--scheduler-file`, or local:N for N Dask processes on this machine",
            slug="wrong-scheduler",
        )
    if not Path(scheduler).is_file():
        raise UsageError(
            f"{scheduler}: no such file",
            hint="write it with `dask scheduler --scheduler-file FILE.json`",
            slug="no-such-file",
        )


@contextmanager
def open_executor(
    scheduler: str | None = None,
    *,
    jobs: int | None = None,
    note: Callable[[str], None] = lambda _: None,
    verbose: bool = False,
) -> Iterator[WorkerPool]:
    """Yield an executor; all of its processes have ended after the block.

    Args:
        scheduler: None for this machine; `local:N` for Dask with N processes on this machine;
            `tcp://HOST:PORT` or `FILE.json` for a running scheduler of Dask.
        jobs: Number of local processes; 1 is this process itself, None one per processor.
        note: Receives a sentence about unusual conditions.
        verbose: If True, Dask may log.

    Raises:
        UsageError: the scheduler is not understood.
        EngineError: Dask is not installed, the scheduler does not respond, or versions differ.
    """
    check_scheduler(scheduler)
    if scheduler is None:
        count = cpus() if jobs is None else jobs
        with InlinePool() if count == 1 else ProcessPool(count) as pool:
            yield pool
        return
    from unified_prof.pipeline.executors import dask_pool  # an optional package

    if (local := _LOCAL.match(scheduler)) is not None:
        opened = dask_pool.local_pool(int(local["count"] or cpus()), verbose=verbose)
    else:
        opened = dask_pool.remote_pool(scheduler, note, verbose=verbose)
    with opened as dask:
        yield dask


def map_unordered(
    pool: WorkerPool,
    function: Callable[[Item], Result],
    items: Iterable[Item],
    *,
    retry: Callable[[Item], Item] = lambda item: item,
) -> Generator[tuple[Item, Result | Failure], None, None]:
    """Yield (item, result) in the order in which results come.

    An item whose process died is tried once more, alone, after all others; if that process ends as
    well, its result is a `Failure`. Items are consumed as they can be run: there may be more than
    fit into memory.

    Args:
        pool: Runs the function.
        function: Defined at the top of its module; it and the items are pickled.
        items: Arguments of the function.
        retry: Returns the item to run instead of one whose process died: the process may have
            finished the work before it died.

    Raises:
        EngineError: no worker is left; results that were yielded are complete.
        RuntimeError: the function raised, with its traceback; all other items were run first.
    """
    faults: list[str] = []
    rounds = _Rounds(pool, function, faults)
    yield from rounds.finished(((item, item) for item in items), pool.task_s)
    batched, rounds.lost_batched = rounds.lost_batched, []
    yield from rounds.finished((item, retry(item)) for item in batched)
    for item in rounds.lost_single:
        pool.release_idle()
        yield from rounds.finished([(item, retry(item))], last=True)
    if faults:
        raise RuntimeError(f"{len(faults)} task(s) failed; the first:\n{faults[0]}")


@dataclass(frozen=True, slots=True)
class _Raised:
    """An exception of the function in a worker."""

    traceback: str


@dataclass(slots=True)
class _Rounds(Generic[Item, Result]):
    """Runs items, and keeps those whose process died for another round."""

    pool: WorkerPool
    function: Callable[[Item], Result]
    faults: list[str]
    lost_batched: list[Item] = field(default_factory=list)
    """Items of lost tasks with several items, any of which may have ended the process."""
    lost_single: list[Item] = field(default_factory=list)
    """Items of lost tasks with one item."""

    def finished(
        self, pairs: Iterable[tuple[Item, Item]], task_s: float = 0.0, *, last: bool = False
    ) -> Iterator[tuple[Item, Result | Failure]]:
        """Yield (item, result) for pairs (item, item to run for it)."""
        for batch, answer in _in_batches(self.pool, self.function, pairs, task_s):
            if not isinstance(answer, WorkerDied):
                for item, result in zip(batch, answer, strict=True):
                    if isinstance(result, _Raised):
                        self.faults.append(result.traceback)
                    else:
                        yield item, result
            elif last:
                yield batch[0], Failure(str(answer))
            else:
                (self.lost_batched if len(batch) > 1 else self.lost_single).extend(batch)


def _in_batches(
    pool: WorkerPool,
    function: Callable[[Item], Result],
    pairs: Iterable[tuple[Item, Item]],
    task_s: float,
) -> Iterator[tuple[list[Item], list[Result | _Raised] | WorkerDied]]:
    """Keep `pool.max_pending()` tasks pending, and yield the batch and result of each.

    A task is one item until the time of an item is known, then as many as take `task_s`.
    """
    remaining = iter(pairs)
    pending: dict[Future[Any], list[Item]] = {}
    size, seconds, count = 1, 0.0, 0
    more = True
    try:
        while more or pending:
            while more and len(pending) < pool.max_pending():
                batch = list(islice(remaining, size))
                more = len(batch) == size
                if batch:
                    future = pool.submit(_run_batch, function, [todo for _, todo in batch])
                    pending[future] = [item for item, _ in batch]
            done, _ = wait(pending, _CHECK_INTERVAL_S, FIRST_COMPLETED)
            if pending and not done:
                pool.check()
            for future in done:
                items = pending.pop(future)
                answer, batch_s = _result(pool, future)
                if not isinstance(answer, WorkerDied):
                    seconds, count = seconds + batch_s, count + len(items)
                    size = max(1, min(_MAX_BATCH, int(task_s * count / (seconds + 1e-9))))
                yield items, answer
    finally:
        for future in pending:
            future.cancel()


def _result(pool: WorkerPool, future: Future[Any]) -> tuple[Any, float]:
    """Return the result of a task and its CPU time in seconds.

    Raises:
        EngineError: it was cancelled, as all others will be.
    """
    if future.cancelled():
        pool.check()
        raise EngineError("a task was cancelled from outside", slug="cancelled")
    err = future.exception()
    if isinstance(err, WorkerDied):
        return err, 0.0
    if err is not None:
        raise err
    results, seconds = future.result()
    return results, seconds


def _run_batch(
    function: Callable[[Item], Result], items: Sequence[Item]
) -> tuple[list[Result | _Raised], float]:
    """Run the items of a task in a worker, and return their results and the CPU time in seconds.

    CPU time, because elapsed time on a busy machine would make later tasks too small.
    """
    results: list[Result | _Raised] = []
    begin = time.process_time()
    for item in items:
        try:
            results.append(function(item))
        except Exception:
            results.append(_Raised(traceback.format_exc()))
    return results, time.process_time() - begin
