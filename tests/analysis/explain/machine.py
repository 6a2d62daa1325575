"""Simulated host and device with streams, events and waits, which writes recordings of programs.

The machine knows what each task waited for; a recording has only times. Tests compare what the
analysis of a recording predicts with what the machine does when the program is changed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from tests.analysis.builders import Device
from unified_prof.base.columns import NO_NUMBER

LATENCY_NS = 6_000
GAP_NS = 800
CALL_NS = 4_000
RETURN_NS = 3_000
HOST, ENGINE = 1, 2
FETCH = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


@dataclass(frozen=True)
class Launch:
    """An operation that launches one kernel."""

    kernel: str
    ns: int
    stream: int = 7
    operation: str = "aten::op"
    before_ns: int = 3_000
    """Host time within the operation, before the launch and again after it."""


@dataclass(frozen=True)
class HostWork:
    """Host work outside operations."""

    ns: int


@dataclass(frozen=True)
class RecordEvent:
    """Record an event on a stream."""

    event: int
    stream: int


@dataclass(frozen=True)
class WaitEvent:
    """Make a stream wait for an event."""

    event: int
    stream: int


@dataclass(frozen=True)
class Synchronize:
    """Wait on the host for a stream (None: for all streams), optionally within an operation."""

    stream: int | None = None
    operation: str | None = None


@dataclass(frozen=True)
class FetchBatch:
    """Wait on the host for the next batch of a worker process that needs `ns` for each.

    Taking a batch that is ready takes `ready_ns`.
    """

    ns: int
    ready_ns: int = 0


@dataclass(frozen=True)
class EndStep:
    """End the step and begin the next one."""


Action = Launch | HostWork | RecordEvent | WaitEvent | Synchronize | FetchBatch | EndStep


@dataclass
class Execution:
    """What the machine did."""

    calls: list[tuple[int, int, str, int]] = field(default_factory=list)
    """Start, end, name, connection."""
    operations: list[tuple[int, int, str]] = field(default_factory=list)
    kernels: list[tuple[int, int, str, int, int]] = field(default_factory=list)
    """Start, end, name, stream, connection."""
    syncs: list[dict[str, Any]] = field(default_factory=list)
    steps: list[tuple[int, int]] = field(default_factory=list)
    ends_ns: list[int] = field(default_factory=list)
    """When the host and the device had finished each step."""

    @property
    def step_ns(self) -> list[int]:
        """Duration of each step."""
        begins = [max(self.steps[0][0], 0), *self.ends_ns[:-1]]
        return [
            end - max(begin, step[0])
            for begin, end, step in zip(begins, self.ends_ns, self.steps, strict=True)
        ]


def run(program: Sequence[Action], *, noise: int = 0, queue: int | None = None) -> Execution:
    """Execute a program.

    Args:
        program: What the host does.
        noise: Largest random delay, from a fixed seed.
        queue: Number of launches that the queue holds; the next one waits until a task ends.
    """
    random = np.random.default_rng(17)
    execution = Execution()
    at, number, began = 1_000, 0, 0
    free: dict[int, int] = {}
    awaited: dict[int, int] = {}
    events: dict[int, tuple[int, int, int]] = {}
    last_work = batches = 0

    def call(name: str, length: int = CALL_NS) -> int:
        nonlocal at, number
        number += 1
        execution.calls.append((at, at + length, name, number))
        at += length
        return number

    for action in program:
        delay = int(random.integers(0, noise + 1))
        if isinstance(action, HostWork):
            at += action.ns
        elif isinstance(action, Launch):
            begin = at
            at += action.before_ns
            launched = at
            ended = sorted(kernel[1] for kernel in execution.kernels)
            freed = ended[-queue] if queue is not None and len(ended) >= queue else 0
            connection = call("cudaLaunchKernel", max(CALL_NS, freed + RETURN_NS - at))
            start = max(
                launched + LATENCY_NS + delay,
                free.get(action.stream, 0) + GAP_NS,
                awaited.pop(action.stream, 0) + GAP_NS,
            )
            free[action.stream] = start + action.ns
            last_work = max(last_work, start + action.ns)
            end = start + action.ns
            execution.kernels.append((start, end, action.kernel, action.stream, connection))
            at += action.before_ns
            execution.operations.append((begin, at, action.operation))
        elif isinstance(action, RecordEvent):
            connection = call("cudaEventRecord", 1_000)
            events[action.event] = (free.get(action.stream, 0), action.stream, connection)
        elif isinstance(action, WaitEvent):
            done, stream, record = events[action.event]
            since = at
            connection = call("cudaStreamWaitEvent", 1_000)
            awaited[action.stream] = max(awaited.get(action.stream, 0), done)
            execution.syncs.append(
                {
                    "startNs": since,
                    "endNs": at,
                    "streamId": action.stream,
                    "kind": "Stream Wait Event",
                    "correlationId": connection,
                    "waitStream": stream,
                    "waitEvent": action.event,
                    "waitRecord": record,
                }
            )
        elif isinstance(action, Synchronize):
            only = action.stream
            done = max(free.values(), default=0) if only is None else free.get(only, 0)
            since = at
            name = "cudaDeviceSynchronize" if only is None else "cudaStreamSynchronize"
            connection = call(name, max(done + RETURN_NS + delay - at, RETURN_NS))
            if action.operation is not None:
                execution.operations.append((since, at, action.operation))
            execution.syncs.append(
                {
                    "startNs": since,
                    "endNs": at,
                    "streamId": NO_NUMBER if only is None else only,
                    "kind": "Context Sync" if only is None else "Stream Sync",
                    "correlationId": connection,
                }
            )
        elif isinstance(action, FetchBatch):
            batches += 1
            begin, at = at, max(at + max(CALL_NS, action.ready_ns), batches * action.ns)
            execution.operations.append((begin, at, FETCH))
        else:
            execution.steps.append((began, at))
            execution.ends_ns.append(max(at, last_work))
            began = at
    return execution


def write(
    execution: Execution,
    path: Path,
    *,
    syncs: bool = True,
    host: bool = True,
    model: str | None = None,
) -> Path:
    """Write an execution as a recording, optionally without synchronization rows or host calls."""
    with Device(path) as device:
        if model is not None:
            device.row("NPU_INFO", id=0, name=model)
        for start, end, name in execution.operations if host else ():
            device.call(start, end, name, thread=HOST)
        for number, (start, end) in enumerate(execution.steps):
            if host:
                device.call(start, end, f"ProfilerStep#{number}", thread=HOST)
            device.step(number, start, end)
        for start, end, name, connection in execution.calls if host else ():
            device.runtime(start, end, name, connection, thread=HOST)
        for start, end, name, stream, connection in sorted(execution.kernels):
            connection = connection if host else -1
            kernel = (name, name.partition("_")[0])
            device.task(start, end, stream=stream, connection=connection, kernel=kernel)
        for sync in execution.syncs if syncs and host else ():
            event = dict.fromkeys(("waitStream", "waitEvent", "waitRecord")) | sync
            event |= {"kind": device.text(sync["kind"]), "deviceId": 0, "contextId": None}
            device.row("UPROF_GPU_SYNCS", **event)
    return path


def with_faster_kernel(program: Sequence[Action], kernel: str, factor: float) -> list[Action]:
    """Return the program with kernels of this name faster by `factor`."""
    return [
        replace(action, ns=round(action.ns / factor))
        if isinstance(action, Launch) and action.kernel == kernel
        else action
        for action in program
    ]


def with_faster_host(program: Sequence[Action], operation: str, factor: float) -> list[Action]:
    """Return the program with less host time around the launches of an operation."""
    return [
        replace(action, before_ns=round(action.before_ns / factor))
        if isinstance(action, Launch) and action.operation == operation
        else action
        for action in program
    ]
