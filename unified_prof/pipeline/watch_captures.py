"""Captures of a watched run: when one may start, where it is written, and what becomes of it.

A capture is a directory `captures/rank<R>_step<N>_<kind>`. A child process of low priority explains
it (`watch_explain`). Other processes request captures with files in `requests/`.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np
from msgspec import Struct

from unified_prof.base.text import NS_PER_S
from unified_prof.errors import StoreError
from unified_prof.pipeline.outputs import make_directory
from unified_prof.sqlite.atomic import output_error, output_errors
from unified_prof.sqlite.watch_file import RankSteps, WatchEvent, rank_and_part, read_folder

CAPTURES = "captures"
TRACE_NAME = "timeline.json.gz"
_EXPLAIN = "unified_prof.pipeline.watch_explain"
_REQUESTS = "requests"
_OVER = ("ready", "failed")  # States of a capture that do not change any more.
_MIN_INTERVAL_S = 10.0  # Shortest time between two captures that triggers start.
# Time in which every rank has read a request: it looks twice a second, and the row is written then.
_NOTICE_S = 2.0
_NPU_NOTICE_S = 3.0  # Additional time in which msprof starts.


def new_directory(parent: Path, name: str) -> Path:
    """Create a directory with a number after `name` if an earlier run has used it.

    Raises OutputError if it cannot be created.
    """
    make_directory(parent)
    for number in itertools.count(1):
        place = parent / (name if number == 1 else f"{name}_{number}")
        try:
            place.mkdir()
        except FileExistsError:
            continue
        except OSError as error:
            raise output_error(place, error) from error
        return place
    raise AssertionError


class Budget:
    """Limits the time spent in captures to a share of the time since the run began.

    The capture of healthy steps and captures that a user requests do not count.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._began_s = time.perf_counter()
        self._spent_s = self._last_s = 0.0
        self._ended_s = -_MIN_INTERVAL_S

    def allows(self) -> bool:
        """Return True if another capture like the last one keeps the share."""
        now_s = time.perf_counter()
        if not self._share or now_s - self._ended_s < _MIN_INTERVAL_S:
            return False
        return self._spent_s + self._last_s <= self._share * (now_s - self._began_s)

    def spend(self, spent_ns: int, *, is_free: bool) -> None:
        """Count a capture that slowed the program down by `spent_ns`."""
        self._ended_s = time.perf_counter()
        if not is_free:
            self._last_s = spent_ns / NS_PER_S
            self._spent_s += self._last_s


class Conversions:
    """Converts captures one after another in child processes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._waiting: list[WatchEvent] = []
        self._running: tuple[WatchEvent, subprocess.Popen[str]] | None = None
        self._healthy: str | None = None

    def add(self, event: WatchEvent) -> None:
        """Convert the capture of `event` when its turn comes."""
        self._waiting.append(event)

    @property
    def is_idle(self) -> bool:
        """True if nothing is running or waiting."""
        return not self._waiting and self._running is None

    def poll(self) -> Iterator[WatchEvent]:
        """Start what is waiting; yield each event whose conversion has ended."""
        if self._running is not None:
            event, child = self._running
            if child.poll() is None:
                return
            said = (child.stdout.read() if child.stdout else "").strip()
            event.status = "failed" if child.returncode else "ready"
            event.finding = said or None
            if event.kind == "healthy" and not child.returncode:
                self._healthy = event.capture
            self._running = None
            yield event
        if self._waiting:
            event = self._waiting.pop(0)
            try:
                self._running = event, self._start(event)
            except OSError as error:
                event.status, event.finding = "failed", str(error)
                yield event

    def stop(self) -> None:
        """End the running conversion; its capture keeps the trace."""
        if self._running is not None:
            self._running[1].kill()
            self._running[1].wait()

    def _start(self, event: WatchEvent) -> subprocess.Popen[str]:
        names = [event.capture, *([self._healthy] if self._healthy else [])]
        environment = {**os.environ}
        environment.pop("LD_PRELOAD", None)
        return subprocess.Popen(
            [sys.executable, "-m", _EXPLAIN, *(str(self._folder / str(name)) for name in names)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=self._folder / CAPTURES,  # modules in the program's directory are not imported
            env={**environment, "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )


class CaptureRequest(Struct, frozen=True):
    """A request of another process for a capture."""

    name: str
    from_step: int  # First step that may be captured, so that ranks capture the same steps.
    steps: int
    ranks: tuple[int, ...] | None  # Global ranks; None: all.


def ask(folder: Path, request: CaptureRequest) -> Path:
    """Write a request into the directory of a watched run; only its owner can.

    Raises OutputError if the directory does not exist or cannot be written to.
    """
    place = folder / _REQUESTS
    path = place / f"{request.name}.json"
    fields = {"from_step": request.from_step, "steps": request.steps, "ranks": request.ranks}
    with output_errors(path):
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(fields), encoding="utf-8")
        partial.rename(path)
    return path


def follow(
    folder: Path, known: Mapping[int, RankSteps], request: CaptureRequest, timeout_s: float
) -> Iterator[tuple[int, WatchEvent | None]]:
    """Yield each rank of a request with its capture when that is over; None if the rank has ended.

    `known` are the ranks of the watched run, as read before; `request` was written.
    """
    end_s, waiting = time.monotonic() + timeout_s, set(request.ranks or known)
    while waiting and time.monotonic() < end_s:
        time.sleep(0.2)
        known = read_folder(folder, known)
        for rank in sorted(waiting):
            for event in known[rank].events:
                is_over = event.status in _OVER or (event.capture is None and event.finding)
                if event.kind == "request" and request.name in event.text and is_over:
                    waiting.discard(rank)
                    yield rank, event
            if rank in waiting and not known[rank].is_running:
                waiting.discard(rank)
                yield rank, None


class Requests:
    """Reads the requests in the directory of a run, which only its owner may write to.

    Raises OutputError if the directory cannot be made.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self._place = folder / _REQUESTS
        self._rank = rank
        self._known: set[str] = set()
        make_directory(self._place)
        with suppress(OSError):
            self._place.chmod(0o700)
        self._known.update(path.name for path in self._place.glob("*.json"))

    def new(self) -> Iterator[CaptureRequest]:
        """Yield requests for this rank that were not yielded before; others are ignored."""
        try:
            found = sorted(self._place.iterdir())
        except OSError:
            return
        for path in found:
            if path.suffix != ".json" or path.name in self._known:
                continue
            self._known.add(path.name)
            with suppress(OSError, ValueError, TypeError, KeyError):
                state = path.lstat()
                if state.st_uid != self._place.stat().st_uid or state.st_size > 1 << 20:
                    continue
                fields = json.loads(path.read_text(encoding="utf-8"))
                ranks = fields["ranks"]
                request = CaptureRequest(
                    path.stem,
                    int(fields["from_step"]),
                    max(1, min(int(fields["steps"]), 1_000)),
                    None if ranks is None else tuple(map(int, ranks)),
                )
                if request.ranks is None or self._rank in request.ranks:
                    yield request


def common_step(known: Mapping[int, RankSteps], ranks: Iterable[int]) -> int:
    """Return a step that no rank has begun when it reads a request that is written now."""
    begun = [known[rank] for rank in ranks if len(known[rank])]
    last = [int(one.columns["step"][-1]) for one in begun]
    median_ns = [float(np.median(one.values("length_ns")[-100:])) for one in begun]
    step_ns = max(min(median_ns, default=NS_PER_S), 1)
    has_npu = any(str(one.facts.get("device")).startswith("npu") for one in begun)
    notice_s = _NOTICE_S + has_npu * _NPU_NOTICE_S
    return max(last, default=0) + 1 + round(notice_s * NS_PER_S / step_ns)


def folder_of(pid: int) -> Path:
    """Return the directory of the run that process `pid` watches, from its open files.

    Raises StoreError if the process does not exist, belongs to another user, or watches nothing.
    """
    with suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                path = link.readlink()
                if rank_and_part(path.name) is not None:
                    return path.parent
    raise StoreError(
        f"process {pid} is not watched by uprof, or belongs to another user",
        hint="give the directory that uprof watch printed",
        slug="no-such-file",
    )
