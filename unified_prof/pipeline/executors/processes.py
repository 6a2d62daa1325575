"""Worker pools: the interface, a pool in this process, and a pool of local processes.

`concurrent.futures.ProcessPoolExecutor` fails all tasks if one of its processes is killed, for
example when memory runs out. Here each process has its own pipe and one task at a time, so that
only the task of the killed process fails, and a new process replaces it. Processes end when their
parent ends for any reason.
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
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as wait_for
from multiprocessing.context import SpawnProcess
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import Struct

from unified_prof.base.process_tuning import environment
from unified_prof.base.signals import ended_by_signals, send_ignored_again
from unified_prof.errors import EngineError, SystemLimitError


class WorkerDied(Exception):  # noqa: N818 (the task itself did not fail)
    """Raised if the process of a task died; the text completes "the process ..."."""


class Failure(Struct, frozen=True):
    """Result of an item whose process died in both attempts; the second ran this item alone."""

    why: str  # Completes "the process ...", for example "was terminated by SIGKILL".

    def __str__(self) -> str:
        return self.why


class WorkerPool(Executor):
    """Executor with a limit of pending tasks and a check that workers are left."""

    # Minimum duration of a task in seconds; shorter items are batched to reduce overhead.
    task_s: float = 0.0

    is_distributed = False  # True if the workers may have more memory than this process.

    @abstractmethod
    def max_pending(self) -> int:
        """Return the maximum number of unfinished tasks."""

    def release_idle(self) -> None:
        """Free the memory of idle workers; called before tasks that run alone."""

    def check(self) -> None:
        """Check the workers; called if no task finished for a while or a task was cancelled.

        Raises EngineError if no worker is left for the pending tasks, and SystemLimitError if no
        process can be started.
        """


class InlinePool(WorkerPool):
    """Runs each task immediately in this process; a crashing task ends the process."""

    def max_pending(self) -> int:
        """Return 1: tasks run one after the other."""
        return 1

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call `fn` and return a finished future."""
        future: Future[Any] = Future()
        try:
            result = fn(*args, **kwargs)
        except Exception as err:
            future.set_exception(err)
        else:
            future.set_result(result)
        return future


_GRACE_S = 10.0  # Maximum time for a process to clean up before it is killed.


class _Traceback(Exception):  # noqa: N818 (shown as the cause of another exception)
    """Traceback of an exception in another process, used as its cause."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class _Process(NamedTuple):
    process: SpawnProcess
    connection: Connection


class ProcessPool(WorkerPool):
    """Executor on local processes, which are started on demand.

    A thread waits for each process. Functions must be module-level, because they and their
    arguments are pickled. The future of a task whose process died raises `WorkerDied`. `shutdown`
    with `cancel_futures`, or an exception in the `with` block, terminates running tasks.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._threads = ThreadPoolExecutor(count, "uprof-pool")
        # Held while processes start and are reaped, which no two threads may do at once.
        self._lock = threading.Lock()
        self._idle: list[_Process] = []
        self._busy: list[_Process] = []
        self._is_cancelled = False

    def max_pending(self) -> int:
        """Return twice the number of processes, so that no process waits for its next task."""
        return 2 * self._count

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call `fn` in a process; raises immediately if the arguments cannot be pickled."""
        message = bytes(ForkingPickler.dumps((fn, args, kwargs)))
        return self._threads.submit(self._run, message)

    def release_idle(self) -> None:
        """End idle processes to free their memory."""
        with self._lock:
            idle, self._idle = self._idle, []
            _end(idle)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the processes: after the last task, or immediately if `cancel_futures` is true."""
        with self._lock:
            self._is_cancelled = self._is_cancelled or cancel_futures
            busy = self._busy[:] if cancel_futures else []
        for process in busy:
            process.process.terminate()  # it removes its partial files
        deadline = time.monotonic() + _GRACE_S
        for process in busy:
            remaining_s = max(0.0, deadline - time.monotonic())
            if not wait_for([process.process.sentinel], remaining_s):
                process.process.kill()
        self._threads.shutdown(wait)
        self.release_idle()

    def __exit__(self, kind: object, *_: object) -> None:
        self.shutdown(cancel_futures=kind is not None)

    def _run(self, message: bytes) -> Any:
        """Return the result of a task that runs in an idle or a new process."""
        with self._lock:
            if self._is_cancelled:
                raise WorkerDied("was terminated with the pool")
            process = self._next_process()
            self._busy.append(process)
        try:
            process.connection.send_bytes(message)
            answer = process.connection.recv_bytes()
        except (EOFError, OSError):
            with self._lock:
                self._busy.remove(process)
                process.connection.close()
                process.process.join(_GRACE_S)
            raise WorkerDied(_exit_text(process.process.exitcode)) from None
        with self._lock:
            self._busy.remove(process)
            self._idle.append(process)
        try:
            succeeded, result, where = pickle.loads(answer)
        except Exception as err:  # an exception that cannot be unpickled
            succeeded, result, where = False, err, traceback.format_exc()
        if succeeded:
            return result
        raise result from _Traceback(where)

    def _next_process(self) -> _Process:
        """Return an idle process that has not died, or a new one."""
        while self._idle:
            process = self._idle.pop()
            if process.process.is_alive():
                return process
            process.connection.close()
        try:
            return _start_process()
        except Exception as err:
            kind = SystemLimitError if isinstance(err, OSError) else EngineError
            raise kind(f"cannot start a process: {_reason(err)}", slug="cannot-start") from err


def _reason(err: Exception) -> str:
    """Return why a process cannot be started; `multiprocessing` needs a current directory."""
    try:
        Path.cwd()
    except FileNotFoundError:
        return "the current directory was deleted; change to an existing one"
    return err.strerror if isinstance(err, OSError) and err.strerror else str(err)


def _exit_text(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        try:
            name = signal.Signals(-exit_code).name
        except ValueError:
            name = f"signal {-exit_code}"
        return f"was terminated by {name}"
    return f"ended with exit code {exit_code}"


def _start_process() -> _Process:
    context = multiprocessing.get_context("spawn")
    parent_end, child_end = context.Pipe()
    process = context.Process(target=_serve, args=(child_end,), daemon=True)
    # Interpreters (3.11 or later) then import nothing from the current directory: it may contain
    # downloaded recordings, and processes are spawned by `python -c`.
    with environment("PYTHONSAFEPATH", "1"):
        start_resource_tracker()  # if `start` did this, it would unblock the signal
        with sigint_blocked():
            process.start()
    child_end.close()
    return _Process(process, parent_end)


def start_resource_tracker() -> None:
    """Start the helper process of multiprocessing, unless it runs or the system has none.

    It ignores SIGINT and SIGTERM, and here also outlives a SIGHUP for the process group: without
    it, each process that ends prints a traceback. If this process is killed, it removes the shared
    resources without a warning.
    """
    main = sys.modules.get("__main__")
    if main is not None and not hasattr(main, "__spec__"):
        main.__spec__ = None  # multiprocessing needs it; %reset of a notebook removes it
    if not hasattr(signal, "SIGHUP"):  # on Windows
        return
    with environment("PYTHONWARNINGS", "ignore::UserWarning:multiprocessing.resource_tracker"):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
        try:
            resource_tracker.ensure_running()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})


@contextmanager
def sigint_blocked() -> Iterator[None]:
    """Let new processes not see Ctrl-C before `_serve` ignores it: their imports would raise."""
    if not hasattr(signal, "pthread_sigmask"):  # on Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end(pool: Sequence[_Process]) -> None:
    for process in pool:
        process.connection.close()  # the process ends when its pipe closes
    deadline = time.monotonic() + _GRACE_S
    for process in pool:
        process.process.join(max(0.0, deadline - time.monotonic()))
        if process.process.is_alive():
            process.process.kill()
            process.process.join()


def _serve(connection: Connection) -> None:
    """Main function of a process: run tasks until the pipe closes."""
    sys.unraisablehook = send_ignored_again
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C reaches the parent, which ends the processes
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with ended_by_signals():
        while True:
            try:
                message = connection.recv_bytes()
            except (EOFError, OSError):
                return
            answer = _run_message(message)
            with suppress(BrokenPipeError):
                connection.send_bytes(answer)


def _run_message(message: bytes) -> bytes:
    """Run a task and return (success, result or exception, traceback), pickled."""
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
    """Wait until the parent process has ended, then send SIGTERM to this process."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE_S)
    os._exit(128 + signal.SIGTERM)
