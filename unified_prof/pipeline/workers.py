"""Runs one function over many tasks, a process for each of a few workers.

Unlike an executor's, these processes may die (the system kills what takes too much memory): the
task that was lost is tried once more, alone, when all others are done, and nothing else is lost
with it. They also never outlive their parent, however that ends.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any, TypeVar

from unified_prof.signals import ended_by_signals

Task = TypeVar("Task")
Result = TypeVar("Result")
_Numbered = Sequence[Any] | Mapping[int, Any]

_GRACE_S = 10.0
"""How long a worker may take to clean up when it is told to end."""


@dataclass(frozen=True, slots=True)
class Died:
    """A task whose process ended without a result, and ended again when it was tried alone."""

    exit_code: int | None
    """As `multiprocessing` has it: the negative number of a signal, where one ended it."""

    def __str__(self) -> str:
        if self.exit_code is not None and self.exit_code < 0:
            try:
                name = signal.Signals(-self.exit_code).name
            except ValueError:
                name = f"signal {-self.exit_code}"
            return f"was ended by {name}"
        return f"ended with exit code {self.exit_code}"


@dataclass(frozen=True, slots=True)
class _Bug:
    """An exception that the function was not meant to raise."""

    text: str


@dataclass(slots=True)
class _Worker:
    process: SpawnProcess
    connection: Connection
    task: int | None = None


def each(
    function: Callable[[Task], Result],
    tasks: Sequence[Task],
    workers: int,
    again: Callable[[Task], Task] = lambda task: task,
) -> Iterator[tuple[int, Result | Died]]:
    """Yield (number of the task, its result) as results come.

    Args:
        function: At the top of its module; it and the tasks go to the workers by pickling.
        tasks: Arguments of the function.
        workers: How many processes to have at a time.
        again: Returns the task to do in place of one whose worker died: it may have died when
            all was done but for saying so.

    Raises:
        RuntimeError: the function raised, with its traceback; all other tasks were done first.
    """
    lost: list[int] = []
    bugs: list[str] = []
    for number, result in _all(function, tasks, range(len(tasks)), workers):
        if isinstance(result, Died):
            lost.append(number)
        elif isinstance(result, _Bug):
            bugs.append(result.text)
        else:
            yield number, result
    anew = {number: again(tasks[number]) for number in lost}
    for number, result in _all(function, anew, lost, 1):
        if isinstance(result, _Bug):
            bugs.append(result.text)
        else:
            yield number, result
    if bugs:
        raise RuntimeError(f"{len(bugs)} task(s) failed; the first:\n{bugs[0]}")


def _all(
    function: Callable[[Task], Any], tasks: _Numbered, numbers: Sequence[int], workers: int
) -> Iterator[tuple[int, Any]]:
    waiting = deque(numbers)
    pool: list[_Worker] = []
    try:
        while waiting or pool:
            while waiting and len(pool) < workers:
                pool.append(_started(function))
                _give(pool[-1], waiting.popleft(), tasks)
            by_connection = {worker.connection: worker for worker in pool}
            for ready in wait(list(by_connection)):
                worker = by_connection[ready]  # type: ignore[index]
                assert worker.task is not None
                try:
                    result = worker.connection.recv()
                except (EOFError, OSError):
                    pool.remove(worker)
                    worker.connection.close()
                    worker.process.join(_GRACE_S)
                    yield worker.task, Died(worker.process.exitcode)
                    continue
                yield worker.task, result
                if waiting:
                    _give(worker, waiting.popleft(), tasks)
                else:
                    pool.remove(worker)
                    worker.connection.close()  # it ends by itself
                    worker.process.join(_GRACE_S)
    finally:
        _end(pool)


def _started(function: Callable[[Any], Any]) -> _Worker:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, function), daemon=True)
    process.start()
    theirs.close()
    return _Worker(process, ours)


def _give(worker: _Worker, number: int, tasks: _Numbered) -> None:
    worker.task = number
    with suppress(OSError):  # it died between two tasks: waiting for its result will tell
        worker.connection.send(tasks[number])


def _end(pool: Sequence[_Worker]) -> None:
    """End workers whose results nobody wants; they remove what they have not finished."""
    for worker in pool:
        worker.process.terminate()
    deadline = time.monotonic() + _GRACE_S
    for worker in pool:
        worker.process.join(max(0.0, deadline - time.monotonic()))
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()
        worker.connection.close()


def _serve(connection: Connection, function: Callable[[Any], Any]) -> None:
    """Do tasks until there are no more; what a worker runs."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which ends us
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with ended_by_signals():
        while True:
            try:
                task = connection.recv()
            except (EOFError, OSError):
                return
            try:
                result = function(task)
            except Exception:
                result = _Bug(traceback.format_exc())
            connection.send(result)


def _end_with_parent() -> None:
    """Wait until the parent is gone, then end this process as SIGTERM does."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE_S)
    os._exit(128 + signal.SIGTERM)
