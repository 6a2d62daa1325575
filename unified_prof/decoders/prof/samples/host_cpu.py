"""CPU_USAGE: how much of every CPU the profiled process used, host_cpu.data (text)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from unified_prof.columns import Sink
from unified_prof.decoders.prof.raw import sampling
from unified_prof.decoders.prof.raw.control import positive_decimal
from unified_prof.decoders.prof.raw.directory import HostDirectory

# Of /proc/<pid>/task/<tid>/stat, counted behind the command's closing parenthesis.
_USER_JIFFIES, _SYSTEM_JIFFIES, _CPU = 11, 12, 36
_FULL = 100
_UPTIME = re.compile(r"[\d.]{1,24}\s+[\d.]{1,24}\s*")


@dataclass(slots=True)
class _Moment:
    time_ns: int
    uptime_s: Fraction | None = None
    threads: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Jiffies used so far, and the CPU last run on, by thread."""


def decode(host: HostDirectory, sink: Sink) -> None:
    """Write CPU_USAGE: percent between neighbouring samples, at the time of the earlier one.

    What a thread used counts for the CPU it ran on last, at most the whole interval; CPUs that
    several threads put over 100 percent are left out, as in the exporter's databases.
    """
    clock_hz = host.info.integer("sysClockFreq") or 0
    if clock_hz <= 0:
        sink.anomaly("host_clock_unknown", 1, f"{host.info.path} has no positive sysClockFreq")
        return
    rows: list[tuple[int, int, float]] = []
    overfull = 0
    earlier: _Moment | None = None
    for later in _moments(host, sink):
        if earlier is not None:
            for cpu, percent in sorted(_usage(earlier, later, clock_hz).items()):
                if percent > _FULL:
                    overfull += 1
                else:
                    rows.append((earlier.time_ns, cpu, float(percent)))
        earlier = later
    if overfull:
        sink.anomaly("cpu_usage_over_100", overfull, f"{host.data.path}/host_cpu.data")
    if not rows:
        return
    times, cpus, usages = zip(*rows, strict=True)
    columns = {
        "timestampNs": host.clocks.monotonic.to_ns(np.array(times, np.int64)),
        "cpuId": np.array(cpus, np.int64),
        "usage": np.array(usages),
    }
    sampling.write_samples(sink, "CPU_USAGE", host, columns)


def _usage(earlier: _Moment, later: _Moment, clock_hz: int) -> dict[int, Fraction]:
    """Return percent by CPU."""
    if earlier.uptime_s is None or later.uptime_s is None:
        return {}
    interval = (later.uptime_s - earlier.uptime_s) * clock_hz
    if interval <= 0:
        return {}
    usage: dict[int, Fraction] = {}
    for thread, (jiffies, cpu) in later.threads.items():
        if thread in earlier.threads:
            used = min(Fraction(max(jiffies - earlier.threads[thread][0], 0)), interval)
            usage[cpu] = usage.get(cpu, Fraction(0)) + used / interval * _FULL
    return usage


def _moments(host: HostDirectory, sink: Sink) -> Iterator[_Moment]:
    damaged = 0
    for time_ns, lines in sampling.timed_blocks(host, sink, "host_cpu"):
        moment = _Moment(time_ns)
        for line in lines:
            if _UPTIME.fullmatch(line):
                uptime = positive_decimal(line.split()[0])
                damaged += uptime is None
                moment.uptime_s = None if uptime is None else Fraction(uptime)
            else:
                damaged += not _add_thread(moment, line)
        yield moment
    sampling.count_damaged(sink, host, "host_cpu.data", damaged)


def _add_thread(moment: _Moment, line: str) -> bool:
    head, parenthesis, tail = line.rpartition(")")  # a command may itself hold parentheses
    fields = tail.split()
    thread = sampling.integer(head.partition(" ")[0])
    if not parenthesis or thread is None or len(fields) <= _CPU:
        return False
    numbers = [sampling.integer(fields[at]) for at in (_USER_JIFFIES, _SYSTEM_JIFFIES, _CPU)]
    user, system, cpu = numbers
    if user is None or system is None or cpu is None:
        return False
    moment.threads[thread] = (user + system, cpu)
    return True
