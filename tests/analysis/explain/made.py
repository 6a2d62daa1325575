"""Recordings of runs that a small machine really went through: a host, streams, events, waits.

The machine knows what it waits for; a recording says only when what ran. So what an analysis of
the recording makes of it can be compared with what the machine does otherwise.
"""

from __future__ import annotations

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
    """Work of the host within the operation before the launch, and as long after it."""


@dataclass(frozen=True)
class Work:
    """Work of the host outside operations."""

    ns: int


@dataclass(frozen=True)
class Record:
    """An event is recorded on a stream."""

    event: int
    stream: int


@dataclass(frozen=True)
class Await:
    """A stream is made to wait for an event."""

    event: int
    stream: int


@dataclass(frozen=True)
class Synchronise:
    """The host waits for a stream, for all of them if it is None, perhaps within an operation."""

    stream: int | None = None
    operation: str | None = None


@dataclass(frozen=True)
class Fetch:
    """The host waits for the next batch of a worker process, which takes so long for each."""

    ns: int


@dataclass(frozen=True)
class Step:
    """A step ends here, and the next one begins."""


Action = Launch | Work | Record | Await | Synchronise | Fetch | Step


@dataclass
class Ran:
    """What happened."""

    calls: list[tuple[int, int, str, int]] = field(default_factory=list)
    """Start, end, name, connection."""
    operations: list[tuple[int, int, str]] = field(default_factory=list)
    kernels: list[tuple[int, int, str, int, int]] = field(default_factory=list)
    """Start, end, name, stream, connection."""
    syncs: list[dict[str, Any]] = field(default_factory=list)
    steps: list[tuple[int, int]] = field(default_factory=list)
    ends_ns: list[int] = field(default_factory=list)
    """When each step was over on the host and on the device."""

    @property
    def step_ns(self) -> list[int]:
        """How long each step took."""
        begins = [max(self.steps[0][0], 0), *self.ends_ns[:-1]]
        return [
            end - max(begin, step[0])
            for begin, end, step in zip(begins, self.ends_ns, self.steps, strict=True)
        ]


def run(program: Sequence[Action], *, noise: int = 0) -> Ran:
    """Let the machine go through a program; `noise` makes its delays vary, the same each time."""
    random = np.random.default_rng(17)
    ran = Ran()
    at, number, began = 1_000, 0, 0
    free: dict[int, int] = {}
    awaited: dict[int, int] = {}
    events: dict[int, tuple[int, int, int]] = {}
    last_work = batches = 0

    def call(name: str, length: int = CALL_NS) -> int:
        nonlocal at, number
        number += 1
        ran.calls.append((at, at + length, name, number))
        at += length
        return number

    for action in program:
        delay = int(random.integers(0, noise + 1))
        if isinstance(action, Work):
            at += action.ns
        elif isinstance(action, Launch):
            begin = at
            at += action.before_ns
            launched = at
            connection = call("cudaLaunchKernel")
            start = max(
                launched + LATENCY_NS + delay,
                free.get(action.stream, 0) + GAP_NS,
                awaited.pop(action.stream, 0) + GAP_NS,
            )
            free[action.stream] = start + action.ns
            last_work = max(last_work, start + action.ns)
            ran.kernels.append((start, start + action.ns, action.kernel, action.stream, connection))
            at += action.before_ns
            ran.operations.append((begin, at, action.operation))
        elif isinstance(action, Record):
            connection = call("cudaEventRecord", 1_000)
            events[action.event] = (free.get(action.stream, 0), action.stream, connection)
        elif isinstance(action, Await):
            done, stream, record = events[action.event]
            since = at
            connection = call("cudaStreamWaitEvent", 1_000)
            awaited[action.stream] = max(awaited.get(action.stream, 0), done)
            ran.syncs.append(
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
        elif isinstance(action, Synchronise):
            only = action.stream
            done = max(free.values(), default=0) if only is None else free.get(only, 0)
            since = at
            name = "cudaDeviceSynchronize" if only is None else "cudaStreamSynchronize"
            connection = call(name, max(done + RETURN_NS + delay - at, RETURN_NS))
            if action.operation is not None:
                ran.operations.append((since, at, action.operation))
            ran.syncs.append(
                {
                    "startNs": since,
                    "endNs": at,
                    "streamId": NO_NUMBER if only is None else only,
                    "kind": "Context Sync" if only is None else "Stream Sync",
                    "correlationId": connection,
                    "waitStream": None,
                    "waitEvent": None,
                    "waitRecord": None,
                }
            )
        elif isinstance(action, Fetch):
            batches += 1
            begin, at = at, max(at + CALL_NS, batches * action.ns)
            ran.operations.append((begin, at, FETCH))
        else:
            ran.steps.append((began, at))
            ran.ends_ns.append(max(at, last_work))
            began = at
    return ran


def write(
    ran: Ran, path: Path, *, syncs: bool = True, host: bool = True, model: str | None = None
) -> Path:
    """Write what happened as a recording; without `syncs` nobody recorded who waited for what."""
    with Device(path) as device:
        t0 = device.T0
        if model is not None:
            device.writer.write("NPU_INFO", {"id": [0], "name": model})
        for start, end, name in ran.operations if host else ():
            device.call(start, end, name, thread=HOST)
        for number, (start, end) in enumerate(ran.steps):
            if host:
                device.call(start, end, f"ProfilerStep#{number}", thread=HOST)
            row: dict[str, Any] = {"id": [number], "startNs": t0 + start, "endNs": t0 + end}
            device.writer.write("STEP_TIME", row)
        for start, end, name, connection in ran.calls if host else ():
            row = {
                "startNs": [t0 + start],
                "endNs": t0 + end,
                "connectionId": connection,
                "globalTid": HOST,
                "name": device.text(name),
            }
            device.writer.write("CANN_API", row)
        for start, end, name, stream, connection in sorted(ran.kernels):
            device.task(
                *(start, end),
                stream=stream,
                connection=connection if host else -1,
                kernel=(name, name.partition("_")[0]),
            )
        for sync in ran.syncs if syncs and host else ():
            row = {name: [value] for name, value in sync.items()}
            row["startNs"], row["endNs"] = [t0 + sync["startNs"]], [t0 + sync["endNs"]]
            row |= {"kind": [device.text(sync["kind"])], "deviceId": [0], "contextId": [None]}
            device.writer.write("UPROF_GPU_SYNCS", row)
    return path


def faster(program: Sequence[Action], kernel: str, factor: float) -> list[Action]:
    """Return a program whose kernels of a name take less time."""
    return [
        replace(action, ns=round(action.ns / factor))
        if isinstance(action, Launch) and action.kernel == kernel
        else action
        for action in program
    ]


def quicker_host(program: Sequence[Action], operation: str, factor: float) -> list[Action]:
    """Return a program in which the host needs less time around the launches of an operation."""
    return [
        replace(action, before_ns=round(action.before_ns / factor))
        if isinstance(action, Launch) and action.operation == operation
        else action
        for action in program
    ]
