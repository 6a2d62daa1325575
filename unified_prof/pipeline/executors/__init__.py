"""Runs a function for many items: in this process, in local processes, or on workers of Dask.

`open_executor` yields a `concurrent.futures.Executor`; `map_unordered` runs a function for many
items on it and yields the results in order of completion.
"""

from __future__ import annotations

import re
import time
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct

from unified_prof.base.process_tuning import processors
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


def check_scheduler(scheduler: str | None) -> None:
    """Raise UsageError if `scheduler` is not valid for `open_executor`; do not connect."""
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
    """Context manager that yields an executor and ends its processes on exit.

    `scheduler` is None for this machine, `local:N` for Dask with N processes on this machine,
    `tcp://HOST:PORT` or `FILE.json` for a running scheduler of Dask. `jobs` is the number of local
    processes; 1: run in this process; None: one per processor. `note` is called about unusual
    conditions; if `verbose`, Dask may log. Raises UsageError if `scheduler` is invalid, and
    EngineError if dask is not installed, the scheduler does not respond, or versions differ.
    """
    check_scheduler(scheduler)
    if scheduler is None:
        count = processors() if jobs is None else jobs
        with InlinePool() if count == 1 else ProcessPool(count) as pool:
            yield pool
        return
    from unified_prof.pipeline.executors import dask_pool  # an optional package

    if (local := _LOCAL.match(scheduler)) is not None:
        opened = dask_pool.local_pool(int(local["count"] or processors()), verbose=verbose)
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
    """Call `function` for each item, and yield (item, result) in order of completion.

    An item whose process died is tried once more, alone, after all others; if that process dies as
    well, its result is a `Failure`. Items are consumed lazily, so `items` may be larger than
    memory. `function` is a module-level function; it and the items are pickled. `retry` returns the
    item for the second attempt: the process may have finished the first one before it died.

    Raises:
        EngineError: no worker is left; results that were already yielded are valid.
        RuntimeError: the function raised an exception; raised after all other items, with the
            traceback.
    """
    faults: list[str] = []
    # Items whose process died: of tasks with several items, any of which may have killed it, and of
    # tasks with one item.
    lost_batched: list[Item] = []
    lost_single: list[Item] = []

    def finished(
        pairs: Iterable[tuple[Item, Item]], task_s: float = 0.0, *, last: bool = False
    ) -> Iterator[tuple[Item, Result | Failure]]:
        """Run pairs of (original item, item to run), and yield (original item, result)."""
        for batch, answer in _in_batches(pool, function, pairs, task_s):
            if not isinstance(answer, WorkerDied):
                for item, result in zip(batch, answer, strict=True):
                    if isinstance(result, _Raised):
                        faults.append(result.traceback)
                    else:
                        yield item, result
            elif last:
                yield batch[0], Failure(str(answer))
            else:
                (lost_batched if len(batch) > 1 else lost_single).extend(batch)

    yield from finished(((item, item) for item in items), pool.task_s)
    yield from finished((item, retry(item)) for item in lost_batched[:])
    for item in lost_single:
        pool.release_idle()
        yield from finished([(item, retry(item))], last=True)
    if faults:
        raise RuntimeError(f"{len(faults)} task(s) failed; the first:\n{faults[0]}")


class _Raised(Struct, frozen=True):
    """An exception raised by the function in a worker."""

    traceback: str


def _in_batches(
    pool: WorkerPool,
    function: Callable[[Item], Result],
    pairs: Iterable[tuple[Item, Item]],
    task_s: float,
) -> Iterator[tuple[list[Item], list[Result | _Raised] | WorkerDied]]:
    """Submit pairs in batches, and yield each batch with its result.

    `pool.max_pending()` tasks are kept pending. A task is one item until the time per item is
    known; then as many items as take `task_s`. Raises EngineError if the tasks were cancelled.
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
                if future.cancelled():  # all tasks are
                    pool.check()
                    text = "a task was cancelled by the scheduler or another client"
                    raise EngineError(text, slug="cancelled")
                if isinstance(err := future.exception(), WorkerDied):
                    yield items, err
                    continue
                answer, batch_s = future.result()
                seconds, count = seconds + batch_s, count + len(items)
                size = max(1, min(_MAX_BATCH, int(task_s * count / (seconds + 1e-9))))
                yield items, answer
    finally:
        for future in pending:
            future.cancel()


def _run_batch(
    function: Callable[[Item], Result], items: Sequence[Item]
) -> tuple[list[Result | _Raised], float]:
    """Run the items of a task in a worker, and return their results and the CPU time in seconds.

    The CPU time determines the size of later tasks; elapsed time on a busy machine would make them
    too small.
    """
    results: list[Result | _Raised] = []
    begin = time.process_time()
    for item in items:
        try:
            results.append(function(item))
        except Exception:
            results.append(_Raised(traceback.format_exc()))
    return results, time.process_time() - begin
