"""Executors for Dask: a running scheduler, or processes on this machine.

Workers import uprof themselves, so they need the same version and the same files. If a worker is
lost, Dask gives its tasks to others; a task that lost as many workers as the scheduler allows
becomes `WorkerDied`. Every request to the scheduler has a time limit, because a scheduler that was
stopped does not answer.
"""

from __future__ import annotations

import logging
import platform
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

from unified_prof.base.signals import held_back
from unified_prof.base.text import some_of
from unified_prof.errors import EngineError, SystemLimitError
from unified_prof.pipeline.executors.processes import (
    WorkerDied,
    WorkerPool,
    sigint_blocked,
    start_resource_tracker,
)
from unified_prof.sqlite.atomic import temporary_folder
from unified_prof.version import VERSION

T = TypeVar("T")

CONNECT_S = 20.0  # Maximum time for a scheduler to answer.
# Maximum time without any worker, at the start or later.
PATIENCE_S = 60.0
_LOGGERS = ("distributed", "distributed.client", "distributed.nanny", "distributed.worker")
_NANNY = "distributed.nanny.pre-spawn-environ"
_INSTALL = "run `pip install 'unified-prof[cluster]'`"
_CONTINUE_HINT = "finished ranks are kept: run the command again to continue"


@contextmanager
def local_pool(
    count: int, *, verbose: bool = False, patience_s: float = PATIENCE_S
) -> Iterator[WorkerPool]:
    """Context manager that starts `count` Dask processes on this machine and ends them on exit."""
    _require_descriptors(count)
    distributed = _import(verbose=verbose)
    import dask

    level = "info" if verbose else "critical"
    settings = {
        "distributed.scheduler.allowed-failures": 0,  # `map_unordered` retries alone
        "distributed.comm.timeouts.connect": "10s",  # waits for results of a worker that died
        # Monitoring for dashboards, which runs many times per second in every process.
        "distributed.worker.profile.enabled": False,
        "distributed.admin.system-monitor.gil.enabled": False,
        "distributed.admin.system-monitor.interval": "10s",
        "distributed.admin.tick.interval": "1s",
        "distributed.admin.tick.limit": "30s",
        "distributed.worker.memory.monitor-interval": "500ms",
        "distributed.scheduler.work-stealing": False,  # few tasks are queued at a worker
        "distributed.scheduler.active-memory-manager.start": False,
        f"{_NANNY}.DASK_LOGGING__DISTRIBUTED": level,
    }
    start_resource_tracker()
    with ExitStack() as ends:
        folder = str(ends.enter_context(temporary_folder()))
        ends.enter_context(dask.config.set({**settings, "temporary-directory": folder}))
        # A signal waits until Dask has started, so that it can be ended; Ctrl-C spares its workers.
        with held_back(), sigint_blocked():
            try:
                cluster = distributed.LocalCluster(
                    n_workers=count,
                    threads_per_worker=1,
                    processes=True,
                    host="127.0.0.1",
                    dashboard_address="127.0.0.1:0",
                    local_directory=folder,
                    silence_logs=False,
                )
            except (OSError, RuntimeError, TimeoutError) as err:
                raise EngineError(
                    f"cannot start Dask on this machine: {err}", slug="no-worker"
                ) from err
            ends.callback(_cleanup, partial(cluster.close, timeout=10))
        name = "Dask on this machine"
        client = ends.enter_context(_connected(distributed, cluster, name))
        yield ends.enter_context(DaskPool(client, name, patience_s))


def _require_descriptors(workers: int) -> None:
    """Raise SystemLimitError if few descriptors are allowed: Dask does not end if they run out."""
    try:
        import resource  # not on Windows
    except ImportError:
        return
    allowed, needed = resource.getrlimit(resource.RLIMIT_NOFILE)[0], 64 + 16 * workers
    if 0 <= allowed < needed:
        raise SystemLimitError(
            f"Dask with {workers} workers needs {needed} file descriptors, {allowed} are allowed",
            hint=f"run `ulimit -n {needed}`, or use --jobs",
            slug="system-limit",
        )


@contextmanager
def remote_pool(
    scheduler: str,
    note: Callable[[str], None],
    *,
    verbose: bool = False,
    patience_s: float = PATIENCE_S,
    connect_s: float = CONNECT_S,
) -> Iterator[WorkerPool]:
    """Context manager that connects to a running scheduler, given by address or scheduler file."""
    distributed = _import(verbose=verbose)
    name = f"the scheduler at {scheduler}"
    where = {"scheduler_file": scheduler} if scheduler.endswith(".json") else {"address": scheduler}
    with _connected(distributed, None, name, connect_s, **where) as client:
        pool = DaskPool(client, name, patience_s)
        pool.wait_for_workers(note)
        for difference in check_versions(client, name):
            note(difference)
        with pool:
            yield pool


class DaskPool(WorkerPool):
    """Executor on the workers of a Dask scheduler."""

    task_s = 0.25  # a task costs its scheduler and its client some 5 ms
    is_distributed = True

    def __init__(self, client: Any, name: str, patience_s: float = PATIENCE_S) -> None:
        self._client, self._name, self._patience_s = client, name, patience_s
        self._executor = client.get_executor(pure=False)
        self._threads = sum(self._query(client.nthreads).values())
        self._without_workers_since: float | None = None

    def max_pending(self) -> int:
        """Return three times the number of worker threads, so that no worker waits for a task."""
        return max(8, 3 * self._threads)

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call `fn` on a worker; the future raises `WorkerDied` if the worker is lost."""
        future: Future[Any] = Future()
        try:
            request = self._executor.submit(_call, VERSION, fn, args, kwargs)
        except Exception as err:
            raise self._lost(err) from err
        request.add_done_callback(partial(_copy_result, future))
        future.add_done_callback(lambda one: one.cancelled() and request.cancel())
        return future

    def check(self) -> None:
        """Raise EngineError if the scheduler does not respond or has no workers for too long."""
        if self._client.status != "running":
            raise self._lost()
        threads = sum(self._query(self._client.nthreads).values())
        if threads:
            self._threads, self._without_workers_since = threads, None
            return
        now = time.monotonic()
        self._without_workers_since = self._without_workers_since or now
        if now - self._without_workers_since > self._patience_s:
            raise EngineError(
                f"{self._name} has had no workers for {self._patience_s:.0f} s",
                hint=f"start workers with a nanny (the default of `dask worker`); {_CONTINUE_HINT}",
                slug="no-worker",
            )

    def wait_for_workers(self, note: Callable[[str], None]) -> None:
        """Wait until the scheduler has a worker."""
        for tries in range(int(self._patience_s * 2) + 1):
            self.check()
            if self._threads:
                return
            if tries == 2:
                note(f"{self._name} has no workers yet; waiting up to {self._patience_s:.0f} s")
            time.sleep(0.5)
        self.check()
        raise EngineError(
            f"{self._name} has no workers",
            hint="start workers: `dask worker tcp://HOST:PORT` on each machine",
            slug="no-worker",
        )

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Cancel the pending tasks; a worker finishes its current task."""
        if self._client.status == "running":
            _cleanup(partial(self._executor.shutdown, wait=wait and not cancel_futures))

    def __exit__(self, kind: object, *_: object) -> None:
        self.shutdown(cancel_futures=kind is not None)

    def _query(self, question: Callable[[], Mapping[str, int]]) -> Mapping[str, int]:
        try:
            return _within(self._patience_s, question)
        except Exception as err:
            raise self._lost(err) from err

    def _lost(self, err: Exception | None = None) -> EngineError:
        why = "does not respond" if isinstance(err, TimeoutError) else "was lost"
        return EngineError(f"{self._name} {why}", hint=_CONTINUE_HINT, slug="scheduler-lost")


def check_versions(client: Any, name: str) -> list[str]:
    """Compare package versions with all workers, and return one note per harmless difference.

    Raises EngineError if a worker has no uprof, another version of it, or another Python.
    """
    try:
        found = _within(CONNECT_S, lambda: client.get_versions(packages=["unified_prof"]))
    except Exception as err:
        raise EngineError(
            f"{name} does not report the versions of its workers: {err}", slug="worker-version"
        ) from err
    local = _versions(found["client"])
    here = platform.python_version()
    remarks: dict[str, list[str]] = {}
    sides = {"the scheduler": found["scheduler"]}
    sides.update({f"worker {address}": facts for address, facts in found["workers"].items()})
    for side, facts in sides.items():
        theirs = _versions(facts)
        if side != "the scheduler" and (version := theirs.get("unified_prof")) != VERSION:
            has = f"has uprof {version}" if version else "has no uprof"
            raise EngineError(
                f"{side} {has}, expected {VERSION} as on this machine",
                hint="install the same version for the workers, and restart them",
                slug="worker-version",
            )
        there = theirs.get("python", here)
        if side != "the scheduler" and there.split(".")[:2] != here.split(".")[:2]:
            raise EngineError(
                f"{side} runs Python {there}, expected {here} as on this machine",
                hint="start workers with the same Python",
                slug="worker-version",
            )
        for package in ("distributed", "dask", "msgpack", "cloudpickle"):
            if theirs.get(package) != local.get(package):
                remark = f"{package} {theirs.get(package)} instead of {local.get(package)} here"
                remarks.setdefault(remark, []).append(side)
    return [f"{some_of(sides, 1)}: {remark}" for remark, sides in remarks.items()]


def _versions(facts: Mapping[str, Any]) -> dict[str, str]:
    host, packages = dict(facts.get("host", ())), dict(facts.get("packages", ()))
    python = str(packages.get("python") or host.get("python", ""))
    versions = {name: str(version) for name, version in packages.items() if version}
    versions["python"] = ".".join(python.split(".")[:3])
    return versions


@contextmanager
def _connected(
    distributed: Any, cluster: Any, name: str, connect_s: float = CONNECT_S, **where: str
) -> Iterator[Any]:
    arguments = {"address": cluster} if cluster is not None else where
    connect = partial(
        distributed.Client, **arguments, timeout=connect_s, set_as_default=False, name="uprof"
    )
    try:
        client = _within(connect_s + 5, connect)
    except (OSError, ValueError, TimeoutError) as err:
        what = "does not respond" if isinstance(err, OSError | TimeoutError) else f"is none: {err}"
        raise EngineError(
            f"{name} {what}",
            hint="check that it is running and that its port is open for this machine",
            slug="scheduler-lost",
        ) from err
    try:
        yield client
    finally:
        _cleanup(partial(client.close, timeout=5))


def _import(*, verbose: bool) -> Any:
    try:
        import dask  # noqa: F401
        import distributed
    except ImportError as err:
        raise EngineError(
            f"several machines need Dask, but {err.name} is not installed",
            hint=_INSTALL,
            slug="missing-package",
        ) from err
    if not verbose:
        for name in _LOGGERS:
            logging.getLogger(name).setLevel(logging.CRITICAL)
        # Each logger of tornado by name: Dask sets their levels separately.
        for name in ("tornado", "tornado.application", "asyncio"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
    return distributed


def _call(version: str, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call `fn` on a worker after checking its version of uprof, as workers may join later."""
    if version != VERSION:
        raise EngineError(
            f"a worker has uprof {VERSION}, expected {version} as on this machine",
            slug="worker-version",
        )
    return fn(*args, **kwargs)


def _copy_result(future: Future[Any], request: Future[Any]) -> None:
    """Set the result or exception of `request` on `future`."""
    if request.cancelled():
        future.cancel()
        future.set_running_or_notify_cancel()
        return
    if not future.set_running_or_notify_cancel():
        return
    err = request.exception()
    if err is None:
        future.set_result(request.result())
    elif type(err).__name__ == "KilledWorker":
        last = getattr(getattr(err, "last_worker", None), "address", None)
        future.set_exception(WorkerDied("ended without a result" + (f" ({last})" if last else "")))
    else:
        future.set_exception(err)


def _within(seconds: float, call: Callable[[], T]) -> T:
    """Return the result of `call()`.

    Raises:
        TimeoutError: the call takes longer than `seconds`; its thread is abandoned.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            results.append(call())
        except BaseException as err:
            errors.append(err)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError(f"no response within {seconds:.0f} s")
    return results[0]


def _cleanup(end: Callable[[], object]) -> None:
    """Call `end` and ignore its errors, which occur if the scheduler is gone.

    Signals wait: workers that have not ended would write into a removed directory.
    """
    with held_back(), suppress(Exception):
        _within(15, end)
