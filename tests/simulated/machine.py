"""Simulate a host with one GPU, and write the trace that torch.profiler 2.13 would write.

Times are microseconds. A thread makes its calls in order. A task starts after its launch, the task
before it on its stream and the events that its stream waits for. Constants are medians of H100
traces.
"""

from __future__ import annotations

import json
import random
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

TABLES: dict[str, Any] = json.loads(Path(__file__).with_name("tables.json").read_text())
LAUNCH_QUEUE = 1024  # Pending tasks above which a launch blocks.
LAUNCH_US = {"cudaLaunchKernel": 4.4, "cudaMemcpyAsync": 7.0}
LATENCY_US = 1.7  # From the end of a launch to the start of a kernel on an idle device.
NEXT_TASK_US = 1.1  # Between two tasks of a stream.
WAKE_US = 4.0  # From the end of a task to the return of the call that waits for it.
GBPS = {"Pinned": 50.0, "Pageable": 8.0}  # Rates of copies.
STAGED_BYTES = 1 << 16  # Smaller pageable copies do not block.
STAGED_US = 60.0  # A call that copies to the device returns before its copy ends, on A100 and H100.
MAIN, AUTOGRAD, LOGGER = 4200, 4377, 4391  # Threads; MAIN is also the process.
COMPUTE, NCCL, PREFETCH, ALL_STREAMS = 7, 20, 24, -1
EPOCH_US = 4894642798000.0
UNITS = 132  # Multiprocessors.
Args = Mapping[str, Any]
Named = tuple[str, str]  # Category and name.
Placed = tuple[int, float, int, float]  # Stream, begin of the launch, correlation, earliest start.


class Launch(NamedTuple):
    """A kernel to launch."""

    name: str
    us: float
    blocks: int
    stream: int = COMPUTE
    details: Mapping[str, Any] = {}
    until: float = 0.0  # Earliest end, because of another rank.


@dataclass(frozen=True)
class Settings:
    """Properties of a run that are not part of a step."""

    workers: int = 4
    batch_us: float = 1_000.0  # Time of a worker for a batch.
    lockstep: bool = False  # The workers start at the same time.
    late_us: float = 0.0  # Delay of the slowest rank, until the first collective of a step.
    launch_blocking: bool = False
    ranks: int = 1
    host_scale: float = 1.0  # Factor of launch overhead.
    sequences: bool = True  # Sequence numbers are recorded.
    python: bool = True  # Python functions are recorded (with_stack).
    slow_clock: float = 1.0  # Factor of computation while power is capped.
    capped_us: float = 0.0  # Length of times with capped power, and of those between them.
    peer_scale: float = 1.0  # Time of the stage before this one, in times of this one.


@dataclass
class Thread:
    """A host thread: its time and its open ranges."""

    id: int
    now: float = EPOCH_US
    ranges: list[tuple[str, int]] = field(default_factory=list)  # Category and id.

    def innermost(self, category: str) -> int | None:
        """Return the id of the innermost range of a category."""
        for kind, number in reversed(self.ranges):
            if kind == category:
                return number
        return None


class Machine:
    """Host and GPU during one run; the methods are what the program does."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.random, self.batches = random.Random(1), random.Random(2)
        self.threads = {name: Thread(name) for name in (MAIN, AUTOGRAD, LOGGER)}
        self.thread = self.threads[MAIN]
        self.tails: dict[int, float] = {}  # Earliest end of the next task by stream.
        self.marks: dict[str, float] = {}  # Time of each event.
        self.pending: deque[float] = deque()
        self.events: list[dict[str, Any]] = []
        self.recording = False
        self.forward: dict[str, tuple[int, int, float]] = {}  # Sequence number, thread, begin.
        self.peer = EPOCH_US  # When the stage before this one is idle.
        self.spans: dict[tuple[int, int], list[float]] = {}  # Of annotations on streams.
        self.ids = dict.fromkeys(("correlation", "External id", "Python id", "sequence"), 0)
        spread_us = 0.0 if settings.lockstep else settings.batch_us / settings.workers
        self.workers = deque(EPOCH_US + spread_us * number for number in range(settings.workers))
        self.requested = deque([EPOCH_US] * settings.workers * 2)  # prefetch_factor=2

    def begin_recording(self) -> None:
        """Start as the profiler does: without events, with an idle device."""
        self.thread.now = max([self.thread.now, *self.tails.values()]) + 500.0
        self.begin, self.ids["Python id"] = self.thread.now - 40.0, 2
        self.thread.ranges = [("python_function", 1), ("python_function", 2)]
        self.recording = True

    @contextmanager
    def step(self, index: int) -> Iterator[None]:
        """Run a step; afterwards, `step_end` is when the host and its tasks are done."""
        self.step_end, self.late_us = 0.0, self.settings.late_us
        with self.range(f"ProfilerStep#{index}", "user_annotation"):
            yield
        self.work(25.0)  # profiler.step()
        self.step_end = max(self.step_end, self.thread.now)

    def write(self, path: Path) -> None:
        """Write the trace."""
        end, ranks = max(one.now for one in self.threads.values()) + 80.0, self.settings.ranks
        for number, name in enumerate(("train.py(212): <module>", "train.py(88): main"), 1):
            ids = {"Python parent id": number - 1 or None, "Python id": number}
            self._event(("python_function", name), MAIN, self.begin + number, end - number, ids)
        info = {"backend": "nccl", "rank": 0, "world_size": ranks, "pg_count": 1}
        document = {**TABLES["trace"], "traceName": path.name}
        document["traceEvents"] = [*document["traceEvents"], *self.events]
        path.write_text(json.dumps(document | ({"distributedInfo": info} if ranks > 1 else {})))

    @contextmanager
    def range(
        self, name: str, category: str = "cpu_op", details: Mapping[str, Any] = {}, key: str = ""
    ) -> Iterator[None]:
        """Open an operation, annotation, Python function or garbage collection (category "gc").

        Operations within each other are separated by ` > `; the last has the details. An operation
        with a key has a sequence number that later ones with this key, of its backward pass, share.
        """
        if not self.settings.sequences and name.startswith("autograd::engine"):
            name = name.partition(" > ")[2]
        name, _, inner = name.partition(" > ")
        thread, args, begin = self.thread, {} if inner else dict(details), self.thread.now
        kind = "Python id" if category == "python_function" else "External id"
        number = 0 if category == "gc" else self._id(kind)
        if category == "python_function":
            args |= {"Python parent id": thread.innermost(category), kind: number}
        elif number:
            args |= {kind: number, "Record function id": 0}
        if key and self.settings.sequences:
            is_backward = "Backward" in name
            if not is_backward:
                self.forward[key] = self._id("sequence"), thread.id, begin
            sequence, forward, at = self.forward[key]
            args |= {"Sequence number": sequence, "Fwd thread id": int(is_backward)}
            if is_backward and not name.startswith("autograd::"):
                self._flow("fwdbwd", sequence, (MAIN, forward, at), (MAIN, thread.id, begin))
        thread.ranges.append((category, number))
        self.work(0.6 if category == "python_function" else 2.5)
        if inner:
            with self.range(inner, category, details, key if thread.id == AUTOGRAD else ""):
                yield
        else:
            yield
        self.work(0.4)
        thread.ranges.pop()
        # The profiler records garbage collections as functions without an id.
        recorded = "python_function" if category == "gc" else category
        args["Ev Idx"] = len(self.events)
        self._event((recorded, name), thread.id, begin, thread.now, args)
        for annotation, stream in [key for key in self.spans if key[0] == number]:
            first, last = self.spans.pop((annotation, stream))
            ids = {"External id": number}
            self._event(("gpu_user_annotation", name), stream, first, last, ids)

    @contextmanager
    def on_thread(self, name: int, join: bool = True) -> Iterator[None]:
        """Make the calls on another thread, and wait for it if `join`."""
        caller, self.thread = self.thread, self.threads[name]
        self.thread.now = max(self.thread.now, caller.now + 12.0 * self.settings.host_scale)
        yield
        caller.now = self.thread.now if join else caller.now
        self.thread = caller
        self.work(12.0)

    def work(self, us: float) -> None:
        """Spend launch overhead on the host."""
        self.thread.now += us * self.settings.host_scale * (0.95 + self.random.expovariate(20.0))

    def fetch(self, us: float) -> None:
        """Load a batch in this process, or with `us` of 0, wait for one of the worker processes."""
        self.thread.now += us
        if us:
            return
        begin = max(self.workers.popleft(), self.requested.popleft())
        self.workers.append(begin + self.settings.batch_us * self.batches.gauss(1.0, 0.02))
        self.requested.append(self.thread.now)
        self.thread.now = max(self.thread.now, self.workers[-1])
        self.work(60.0)

    def memory(self, allocated_bytes: int, reserved_bytes: int) -> None:
        """Record the memory of torch's allocator."""
        if not self.recording:
            return
        args = {"Total Allocated": allocated_bytes, "Total Reserved": reserved_bytes}
        args |= {"Bytes": 1 << 26, "Addr": 140232007385088, "Device Id": 0, "Device Type": 1}
        event = {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]"}
        place = {"pid": MAIN, "tid": self.thread.id, "ts": round(self.thread.now, 3)}
        self.events.append({**event, **place, "args": args})

    def launch(self, *kernels: Launch, call: str = "cudaLaunchKernel") -> None:
        """Launch a kernel or a graph; the first collective of a step waits for the slowest rank."""
        with self._issue(call, LAUNCH_US.get(call, 0.15 * len(kernels))) as placed:
            for name, us, blocks, stream, details, until in kernels:
                if stream == NCCL:
                    us, self.late_us = us + self.late_us, 0.0
                per_unit = blocks / UNITS
                args: dict[str, Any] = {"queued": 0, "registers per thread": 64, "shared memory": 0}
                args |= {"blocks per SM": per_unit, "warps per SM": per_unit * 8}
                args |= {"est. achieved occupancy %": min(100, int(per_unit * 12))}
                args |= {"grid": [blocks, 1, 1], "block": [256, 1, 1], **details}
                us *= max(0.9, self.random.gauss(1.0, 0.01))
                end = self._task(("kernel", name), us, (stream, *placed), args, until)
            if self.settings.launch_blocking:
                self.thread.now = max(self.thread.now, end + WAKE_US)

    def copy(self, kind: str, size_bytes: int, memory: str, stream: int = COMPUTE) -> None:
        """Copy from or to the host; a pageable copy blocks the host."""
        with self._issue("cudaMemcpyAsync", LAUNCH_US["cudaMemcpyAsync"]) as placed:
            ends = ("Device", memory) if kind == "DtoH" else (memory, "Device")
            us = 1.5 + size_bytes / GBPS[memory] / 1e3
            args = {"bytes": size_bytes, "memory bandwidth (GB/s)": size_bytes / us / 1e3}
            named = "gpu_memcpy", f"Memcpy {kind} ({ends[0]} -> {ends[1]})"
            end = self._task(named, us, (stream, *placed), args)
            if memory == "Pageable" and size_bytes > STAGED_BYTES:
                returns = end + WAKE_US if kind == "DtoH" else end - STAGED_US
                self.thread.now = max(self.thread.now, returns)

    def call(self, name: str, us: float = 1.5, waits: int = 0) -> None:
        """Make a call without a task that may wait for a stream."""
        begin = self.thread.now
        self.work(us)
        done = max(self.tails.values()) if waits == ALL_STREAMS else self.tails.get(waits, 0.0)
        self.thread.now = max(self.thread.now, done + WAKE_US if done > begin else 0.0)
        self._returned(name, begin, self._id("correlation"))

    def record(self, event: str, stream: int) -> None:
        """Record an event after the tasks of a stream."""
        self.marks[event] = max(self.thread.now, self.tails.get(stream, 0.0))
        self.call("cudaEventRecord")

    def wait(self, event: str, stream: int) -> None:
        """Let the next task of a stream wait for an event."""
        self.tails[stream] = max(self.tails.get(stream, 0.0), self.marks.get(event, 0.0))
        self.call("cudaStreamWaitEvent")

    @contextmanager
    def _issue(self, name: str, us: float) -> Iterator[tuple[float, int, float]]:
        """Make a launch; yields its begin, its correlation id and when its task may start."""
        begin, correlation = self.thread.now, self._id("correlation")
        if len(self.pending) >= LAUNCH_QUEUE:
            self.thread.now = max(begin, self.pending.popleft())
        self.work(us)
        yield begin, correlation, self.thread.now + LATENCY_US + abs(self.random.gauss(0.0, 0.6))
        self._returned(name, begin, correlation)

    def _task(
        self, named: Named, us: float, placed: Placed, args: Args, until: float = 0.0
    ) -> float:
        """Put a task on its stream and return its end."""
        stream, launched, correlation, start = placed
        start = max(start, self.tails.get(stream, 0.0) + NEXT_TASK_US)
        capped_us = self.settings.capped_us
        if capped_us and stream == COMPUTE and (start - EPOCH_US) // capped_us % 2:
            us *= self.settings.slow_clock
        end = self.tails[stream] = max(start + us, until)
        self.pending.append(end)
        self.step_end = max(self.step_end, end)
        place = {"device": 0, "context": 1, "stream": stream, "correlation": correlation}
        self._event(named, stream, start, end, {**self._owner(), **place, **args})
        self._flow("ac2g", correlation, (MAIN, self.thread.id, launched), (0, stream, start))
        for kind, number in self.thread.ranges:
            if kind == "user_annotation":
                self.spans.setdefault((number, stream), [start, end])[1] = end
        return end

    def _returned(self, name: str, begin: float, correlation: int) -> None:
        args = {**self._owner(), "cbid": TABLES["callbacks"][name], "correlation": correlation}
        self._event(("cuda_runtime", name), self.thread.id, begin, self.thread.now, args)

    def _owner(self) -> dict[str, Any]:
        operation = self.thread.innermost("cpu_op")
        return {"External id": operation} if operation else {}

    def _event(self, named: Named, place: int, begin: float, end: float, args: Args) -> None:
        category, name = named
        if not self.recording or (category == "python_function" and not self.settings.python):
            return
        pid = 0 if category.startswith(("gpu_", "kernel")) else MAIN
        event = {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": place, "args": args}
        self.events.append({**event, "ts": round(begin, 3), "dur": round(end - begin, 3)})

    def _flow(self, name: str, number: int, *ends: tuple[int, int, float]) -> None:
        if not self.recording:
            return
        for phase, (pid, tid, at) in zip("sf", ends, strict=True):
            event = {"ph": phase, "id": number, "pid": pid, "tid": tid, "ts": round(at, 3)}
            end = {"bp": "e"} if phase == "f" else {}
            self.events.append({**event, "cat": name, "name": name, **end})

    def _id(self, kind: str) -> int:
        self.ids[kind] += 1
        return self.ids[kind]
