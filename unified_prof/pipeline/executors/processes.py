"""What all executors have in common, and how a task is told that ended the process it ran in.

Processes of this machine that may die: no task is lost with them but the one they did.

`concurrent.futures.ProcessPoolExecutor` gives up everything when the system kills one of its
processes, as it does with what takes too much memory. Here each process has a pipe and one task at
a time, so that it is known whose process ended; a fresh one takes its place. Processes never
outlive their parent, however that ends.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from abc import abstractmethod
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from multiprocessing.reduction import ForkingPickler
from typing import Any, ParamSpec, TypeVar

from unified_prof.base.signals import ended_by_signals
from unified_prof.errors import EngineError

P = ParamSpec("P")
T = TypeVar("T")


class WorkerDied(Exception):  # noqa: N818 (it is not the task that is in error)
    """The process that did a task ended without a result; `str` says how, after "the process"."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An item whose process ended without a result, and ended again when it was tried alone."""

    why: str
    """How the process ended, as words that follow "the process": "was ended by SIGKILL"."""

    def __str__(self) -> str:
        return self.why


class Crew(Executor):
    """An executor that says how much it wants in flight, and whether anybody is there to work."""

    task_s: float = 0.0
    """How long a task is to be at least, for what it costs to hand one out: shorter items are
    put together."""

    @abstractmethod
    def in_flight(self) -> int:
        """Return how many tasks are to be submitted and not finished at a time."""

    def rest(self) -> None:
        """Called when one task alone is to come: whoever is idle need not hold memory."""

    def check(self) -> None:
        """Called when nothing has finished for a while; or when a task was cancelled.

        Raises:
            EngineError: nobody is there any more who could do what was submitted.
        """


class Here(Crew):
    """Does each task at once, in this process, which a task may end."""

    def in_flight(self) -> int:
        """Return 1: results are to be had one by one."""
        return 1

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Do it, and return the future that has its result."""
        future: Future[Any] = Future()
        try:
            result = fn(*args, **kwargs)
        except Exception as err:
            future.set_exception(err)
        else:
            future.set_result(result)
        return future


_GRACE_S = 10.0
"""How long a process may take to clean up when it is told to end."""


class _Traceback(Exception):  # noqa: N818 (the cause of another, for people to read)
    """Where in the other process an exception was raised."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


@dataclass(slots=True)
class _Job:
    future: Future[Any]
    message: bytes


@dataclass(slots=True)
class _Process:
    process: SpawnProcess
    connection: Connection
    job: _Job | None = None


class Processes(Crew):
    """An executor over processes of this machine, which start when they are needed.

    Functions stand at the top of their module; they and their arguments go to the processes by
    pickling. A task whose process ends has `WorkerDied` as its exception. `shutdown` with
    `cancel_futures` ends what is under way; so does leaving a `with` block by an exception.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._lock = threading.Lock()
        self._waiting: deque[_Job] = deque()
        self._closed = self._cancelled = self._woken = self._resting = False
        self._broken: EngineError | None = None
        self._bell, self._ring = multiprocessing.get_context("spawn").Pipe(duplex=False)
        self._thread: threading.Thread | None = None

    def in_flight(self) -> int:
        """Return twice the number of processes: the next task lies ready when one ends."""
        return 2 * self._count

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Have a process call `fn`; what cannot be pickled is told at once."""
        job = _Job(Future(), bytes(ForkingPickler.dumps((fn, args, kwargs))))
        with self._lock:
            if self._broken is not None:
                raise self._broken
            if self._closed:
                raise RuntimeError("cannot submit a task after shutdown")
            self._waiting.append(job)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="uprof-crew", daemon=True)
                self._thread.start()
            self._wake()
        return job.future

    def rest(self) -> None:
        """End the processes that have nothing to do, for the memory they hold."""
        with self._lock:
            self._resting = True
            self._wake()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the processes: when all is done or, if tasks are to be cancelled, now."""
        with self._lock:
            self._closed = True
            self._cancelled = self._cancelled or cancel_futures
            self._wake()
            thread = self._thread
        if thread is None:
            self._bell.close()
            self._ring.close()
        elif wait:
            thread.join()

    def __exit__(self, kind: object, *_: object) -> None:
        self.shutdown(cancel_futures=kind is not None)

    def _wake(self) -> None:
        if not self._woken and not self._ring.closed:
            self._woken = True
            self._ring.send_bytes(b"!")

    def _work(self) -> None:
        """Give tasks to processes and take results, until there will be no more of them."""
        pool: list[_Process] = []
        try:
            while not self._cancelled:
                if self._resting:
                    self._resting = False
                    idle = [process for process in pool if process.job is None]
                    pool[:] = [process for process in pool if process.job is not None]
                    _end(idle, at_once=False)
                self._hand_out(pool)
                if self._closed and not any(process.job for process in pool):
                    break
                by_connection = {process.connection: process for process in pool}
                for ready in wait([self._bell, *by_connection]):
                    if ready is self._bell:
                        with self._lock:
                            self._bell.recv_bytes()
                            self._woken = False
                    else:
                        _take(by_connection[ready], pool)  # type: ignore[index]
        except Exception as err:  # whatever it is, somebody waits for the tasks
            why = err.strerror if isinstance(err, OSError) and err.strerror else str(err)
            self._broken = EngineError(f"cannot start a process: {why}", slug="cannot-start")
        finally:
            _end(pool, at_once=self._cancelled)
            for job in self._left(pool):
                if self._broken is not None:
                    job.future.set_exception(self._broken)
                elif job.future.cancel():
                    job.future.set_running_or_notify_cancel()  # only that wakes who waits for it
                else:
                    job.future.set_exception(WorkerDied("was terminated with all others"))
            with self._lock:
                self._closed = True
                self._bell.close()
                self._ring.close()

    def _left(self, pool: Sequence[_Process]) -> list[_Job]:
        with self._lock:
            self._closed = True
            waiting = list(self._waiting)
            self._waiting.clear()
        jobs = [*(process.job for process in pool if process.job), *waiting]
        return [job for job in jobs if not job.future.done()]

    def _hand_out(self, pool: list[_Process]) -> None:
        while True:
            idle = next((process for process in pool if process.job is None), None)
            if idle is None and len(pool) >= self._count:
                return
            with self._lock:
                job = self._waiting.popleft() if self._waiting else None
            if job is None:
                return
            if not job.future.set_running_or_notify_cancel():
                continue
            if idle is None:
                try:
                    idle = _started()
                except Exception:
                    with self._lock:
                        self._waiting.appendleft(job)
                    raise
                pool.append(idle)
            idle.job = job
            with suppress(OSError):  # it died between two tasks: waiting for its result will tell
                idle.connection.send_bytes(job.message)


def _take(process: _Process, pool: list[_Process]) -> None:
    """Give a task what its process says, or that it says nothing any more."""
    job, process.job = process.job, None
    try:
        message = process.connection.recv_bytes()
    except (EOFError, OSError):
        pool.remove(process)
        process.connection.close()
        process.process.join(_GRACE_S)
        if job is not None:
            job.future.set_exception(WorkerDied(_how_ended(process.process.exitcode)))
        return
    assert job is not None
    try:
        good, result, where = pickle.loads(message)
    except Exception as err:  # its class cannot be made anew from what it holds
        good, result, where = False, err, traceback.format_exc()
    if good:
        job.future.set_result(result)
    else:
        result.__cause__ = _Traceback(where)
        job.future.set_exception(result)


def _how_ended(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        try:
            name = signal.Signals(-exit_code).name
        except ValueError:
            name = f"signal {-exit_code}"
        return f"was terminated by {name}"
    return f"ended with exit code {exit_code}"


def _started() -> _Process:
    main = sys.modules.get("__main__")
    if main is not None and not hasattr(main, "__spec__"):
        main.__spec__ = None  # a notebook's %reset takes it, and multiprocessing asks for it
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    return _Process(process, ours)


def _end(pool: Sequence[_Process], *, at_once: bool) -> None:
    """End processes; those whose results nobody wants remove what they have not finished."""
    for process in pool:
        if at_once or process.job is not None:
            process.process.terminate()
        else:
            process.connection.close()  # it ends by itself
    deadline = time.monotonic() + _GRACE_S
    for process in pool:
        process.process.join(max(0.0, deadline - time.monotonic()))
        if process.process.is_alive():
            process.process.kill()
            process.process.join()
        process.connection.close()


def _serve(connection: Connection) -> None:
    """Do tasks until there are no more; what a process runs."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which ends us
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with ended_by_signals():
        while True:
            try:
                message = connection.recv_bytes()
            except (EOFError, OSError):
                return
            answer = _answer(message)
            with suppress(BrokenPipeError):
                connection.send_bytes(answer)


def _answer(message: bytes) -> bytes:
    """Do one task and return (whether it went well, its result or exception, where), pickled."""
    try:
        function, args, kwargs = pickle.loads(message)
        return bytes(ForkingPickler.dumps((True, function(*args, **kwargs), "")))
    except Exception as err:
        where = traceback.format_exc()
        try:
            answer = bytes(ForkingPickler.dumps((False, err, where)))
            pickle.loads(answer)
        except Exception:
            answer = bytes(ForkingPickler.dumps((False, RuntimeError(repr(err)), where)))
        return answer


def _end_with_parent() -> None:
    """Wait until the parent is gone, then end this process as SIGTERM does."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE_S)
    os._exit(128 + signal.SIGTERM)
