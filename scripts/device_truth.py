"""Measure accuracy and cost of tracking on a device, compared with torch.profiler.

For each model, the sum of the forward and backward times of all operations is compared with the
time of the same passes on a saturated device: two events around both passes, behind a kernel that
runs until the host has launched everything. That time consists of the kernels, as recorded by
torch.profiler, and the gaps between kernels (0.85 us on an H100). On the test device of
`tests/device`, kernels take exactly 3 us or 3 ms without gaps, so all three are equal. The cost is
the additional host time per operation for launching a step with all operations timed.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

import unified_prof
from unified_prof.tracking.device_clock import make_lag

ROUNDS = 5
US, MS = 1_000, 1_000_000


@dataclass(frozen=True)
class Truth:
    """One model on one device."""

    # Sum of the times of all operations, forward and backward.
    operations_ms: float
    # Time of the same passes on a saturated device, which never waits for the host.
    queued_ms: float
    # Time of the kernels of these passes.
    kernels_ms: float
    operations: int
    # Number of timed intervals in which the device caught up with the host, of all.
    reached: str
    # Host time for timing an operation and its backward.
    host_us_per_operation: float
    # Total time of an iteration in the report.
    step_ms: float
    # The same without uprof, measured by two events around iterations.
    plain_step_ms: float

    @property
    def error(self) -> float:
        """Relative error of the sum of operations."""
        return self.operations_ms / self.queued_ms - 1


def truth(
    device: str, model: nn.Module, inputs: tuple[torch.Tensor, ...], rounds: int = ROUNDS
) -> Truth:
    """Measure training steps of `model` with uprof, with events and with torch.profiler."""
    model = model.to(device)
    inputs = tuple(one.to(device) for one in inputs)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def passes() -> None:
        optimizer.zero_grad()
        model(*inputs).backward()

    for _ in range(3):
        passes()
        optimizer.step()
    kernels_ms = statistics.median(_kernels_ms(device, passes) for _ in range(3))
    queued_ms = statistics.median(_queued_ms(device, passes) for _ in range(5))
    plain_ms, plain_launch_us = _plain(device, passes, optimizer.step, rounds)
    launches_us: list[float] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        unified_prof.profile(
            Path(folder) / "out",
            device=device,
            reports=["run-time"],
            warmup=1,
            iterations=rounds,
            scope="project",
            project_root=Path(__file__).parent,
        ) as profile,
    ):
        for _ in range(2 * rounds + 4):
            begin = time.process_time()
            passes()
            launches_us.append((time.process_time() - begin) * 1e6)
            optimizer.step()
    tracked = profile.tracked
    assert tracked is not None, profile.failure
    total = [
        statistics.median(one.forward_ms) + statistics.median(one.backward_ms or (0.0,))
        for one in tracked.operations
    ]
    # Every other step is timed. Other load can only make steps longer, so the minimum counts.
    timed_us = min(launches_us[1 : 1 + 2 * rounds : 2])
    return Truth(
        operations_ms=sum(total),
        queued_ms=queued_ms,
        kernels_ms=kernels_ms,
        operations=len(total),
        reached=tracked.facts.get("intervals_reached_by_device", "none"),
        host_us_per_operation=(timed_us - plain_launch_us) / len(total),
        step_ms=statistics.median(one.total_ms for one in tracked.iterations),
        plain_step_ms=plain_ms,
    )


def _plain(
    device: str, passes: Callable[[], None], step: Callable[[], Any], rounds: int
) -> tuple[float, float]:
    """Return the median step time by device events, and the minimum time to launch its passes."""
    steps_ms, launches_us = [], []
    for _ in range(rounds):
        synchronize(device)
        begin, end = (torch.Event(device, enable_timing=True) for _ in range(2))
        begin.record()
        began = time.process_time()
        passes()
        launches_us.append((time.process_time() - began) * 1e6)
        step()
        end.record()
        synchronize(device)
        steps_ms.append(begin.elapsed_time(end))
    return statistics.median(steps_ms), min(launches_us)


def _queued_ms(device: str, passes: Callable[[], None]) -> float:
    """Return the device time of both passes while the device never waits for the host."""
    lag, place = make_lag(device, getattr(torch, device)), (0, 0)
    for tries in range(8):
        synchronize(device)
        began = time.perf_counter_ns()
        for _ in range(2**tries):
            lag.hold_back(place, "passes")
        begin, end = (torch.Event(device, enable_timing=True) for _ in range(2))
        begin.record()
        passes()
        end.record()
        was_behind = not begin.query()
        lag.record_host_time("passes", time.perf_counter_ns() - began)
        synchronize(device)
        if was_behind:
            return float(begin.elapsed_time(end)) - lag.event_ns / MS
    raise SystemExit(f"the host cannot launch the work fast enough to saturate {device}")


def _kernels_ms(device: str, passes: Callable[[], None]) -> float:
    """Return the time of all kernels of both passes, as recorded by torch.profiler."""
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    synchronize(device)
    activities = [ProfilerActivity.CPU, getattr(ProfilerActivity, device.upper())]
    with profile(activities=activities) as profiler:
        passes()
        synchronize(device)
    events = profiler.profiler.kineto_results.events()
    return sum(e.duration_ns() for e in events if e.device_type() != DeviceType.CPU) / MS


def synchronize(device: str) -> None:
    """Wait for the device."""
    getattr(torch, device).synchronize()


def summary_line(name: str, found: Truth) -> str:
    """Return the figures as one line of text."""
    return (
        f"{name}: {found.operations} operations, sum {found.operations_ms:.4f} ms, saturated "
        f"device {found.queued_ms:.4f} ms ({100 * found.error:+.2f} %), "
        f"kernels {found.kernels_ms:.4f} ms; device caught up in "
        f"{found.reached} intervals; {found.host_us_per_operation:.0f} us of host time per "
        f"operation; step {found.step_ms:.2f} ms, plain {found.plain_step_ms:.2f} ms"
    )
