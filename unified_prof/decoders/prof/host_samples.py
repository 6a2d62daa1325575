"""Decodes samples of the host: CPU_USAGE, HOST_DISK_USAGE, HOST_MEM_USAGE, HOST_NETWORK_USAGE."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise

import numpy as np

from unified_prof.base.columns import Sink
from unified_prof.base.text import NS_PER_S
from unified_prof.decoders.prof import sampling
from unified_prof.decoders.prof.directory import HostDirectory, positive_decimal
from unified_prof.errors import RawFormatError

# Fields of /proc/<pid>/task/<tid>/stat after the command's closing parenthesis.
_USER_JIFFIES, _SYSTEM_JIFFIES, _CPU = 11, 12, 36
_FULL_PERCENT = 100
_UPTIME = re.compile(r"[\d.]{1,24}\s+[\d.]{1,24}\s*")


@dataclass(slots=True)
class _CpuSample:
    time_ns: int
    uptime_s: Fraction | None = None
    threads: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Thread id -> (jiffies used so far, CPU that last ran the thread)."""


def decode_host_cpu(host: HostDirectory, sink: Sink) -> None:
    """Write CPU_USAGE (host_cpu.data, text): percent of each CPU between samples.

    A row has the time of the earlier sample. The time of a thread is assigned to the CPU that last
    ran it, limited to the length of the interval. As in the exporter, CPUs above 100 percent are
    omitted.
    """
    clock_hz = host.info.integer("sysClockFreq") or 0
    if clock_hz <= 0:
        sink.anomaly("host_clock_unknown", 1, f"{host.info.path} has no positive sysClockFreq")
        return
    rows: list[tuple[int, int, float]] = []
    above_full = 0
    for earlier, later in pairwise(_cpu_samples(host, sink)):
        for cpu, percent in sorted(_usage(earlier, later, clock_hz).items()):
            if percent > _FULL_PERCENT:
                above_full += 1
            else:
                rows.append((earlier.time_ns, cpu, float(percent)))
    if above_full:
        sink.anomaly("cpu_usage_over_100", above_full, f"{host.data.path}/host_cpu.data")
    if not rows:
        return
    times, cpus, usages = zip(*rows, strict=True)
    sampling.write_samples(
        sink,
        host,
        "CPU_USAGE",
        host.clocks.monotonic.to_ns(np.array(times, np.int64)),
        cpuId=np.array(cpus, np.int64),
        usage=np.array(usages),
    )


def _usage(earlier: _CpuSample, later: _CpuSample, clock_hz: int) -> dict[int, Fraction]:
    """Return CPU -> percent."""
    if earlier.uptime_s is None or later.uptime_s is None:
        return {}
    interval = (later.uptime_s - earlier.uptime_s) * clock_hz
    if interval <= 0:
        return {}
    usage: dict[int, Fraction] = {}
    for thread, (jiffies, cpu) in later.threads.items():
        if thread in earlier.threads:
            used = min(Fraction(max(jiffies - earlier.threads[thread][0], 0)), interval)
            usage[cpu] = usage.get(cpu, Fraction(0)) + used / interval * _FULL_PERCENT
    return usage


def _cpu_samples(host: HostDirectory, sink: Sink) -> Iterator[_CpuSample]:
    damaged = 0
    for time_ns, lines in sampling.timed_blocks(host, sink, "host_cpu"):
        sample = _CpuSample(time_ns)
        for line in lines:
            if _UPTIME.fullmatch(line):
                uptime = positive_decimal(line.split()[0])
                damaged += uptime is None
                sample.uptime_s = None if uptime is None else Fraction(uptime)
            else:
                damaged += not _add_thread(sample, line)
        yield sample
    sampling.count_damaged(sink, host, "host_cpu", damaged)


def _add_thread(sample: _CpuSample, line: str) -> bool:
    """Add the thread of a stat line; return False if the line is damaged."""
    head, parenthesis, tail = line.rpartition(")")  # commands may contain parentheses
    fields = tail.split()
    thread = sampling.integer(head.partition(" ")[0])
    if not parenthesis or thread is None or len(fields) <= _CPU:
        return False
    user, system, cpu = (
        sampling.integer(fields[place]) for place in (_USER_JIFFIES, _SYSTEM_JIFFIES, _CPU)
    )
    if user is None or system is None or cpu is None:
        return False
    sample.threads[thread] = (user + system, cpu)
    return True


_START = re.compile(r"start_time\s+(\d{1,19})\s*")
_NUMBER = r"(\d{1,15}(?:\.\d{1,9})?)"
_DISK_LINE = re.compile(
    rf"\s*\d\d:\d\d:\d\d\s+\S+\s+\S+\s+\S+\s+{_NUMBER}\s+([BKMG])/s\s+{_NUMBER}\s+([BKMG])/s"
    rf"\s+{_NUMBER}\s*%\s+{_NUMBER}\s*%"
)
_TOTALS = re.compile(r"\s*(?:Total|Actual|Current) DISK |\s*TIME\s")
_UNIT_BYTES = {"B": 1.0, "K": float(1 << 10), "M": float(1 << 20), "G": float(1 << 30)}


def decode_host_disk(host: HostDirectory, sink: Sink) -> None:
    """Write HOST_DISK_USAGE (host_disk.data, text of iotop): one row per line.

    The time of the n-th line is the start time plus n sampling intervals. Rates are in bytes per
    second; usage is the percentage of time spent waiting for the disk.

    Raises:
        RawFormatError: the file has no start time, or sample.json has no sampling frequency.
    """
    file = host.data.get("host_disk")
    if file is None:
        return
    frequency_hz = host.sample.decimal("host_disk_freq")
    if frequency_hz is None:
        raise RawFormatError(
            f"{host.sample.path} has no positive host_disk_freq", slug="damaged-recording"
        )
    step_ns = float(NS_PER_S / frequency_hz)
    start_ns: int | None = None
    damaged, index = 0, 0
    for lines in sampling.text_lines(file):
        rows: list[tuple[float, float, float]] = []
        for line in lines:
            if match := _DISK_LINE.match(line):
                read, read_unit, write, write_unit, _swap, usage = match.groups()
                rows.append(
                    (
                        float(read) * _UNIT_BYTES[read_unit],
                        float(write) * _UNIT_BYTES[write_unit],
                        float(usage),
                    )
                )
            elif start := _START.fullmatch(line):
                start_ns = int(start[1]) if start_ns is None else start_ns
            elif not _TOTALS.match(line):
                damaged += 1
        if not rows:
            continue
        if start_ns is None:
            raise RawFormatError(
                f"{host.data.path}/host_disk.data has no start_time <ns> line",
                slug="damaged-recording",
            )
        steps = np.arange(index, index + len(rows)) * step_ns
        index += len(rows)
        read_rate, write_rate, share = np.array(rows).T
        sampling.write_samples(
            sink,
            host,
            "HOST_DISK_USAGE",
            host.clocks.monotonic.to_ns(steps.astype(np.int64) + start_ns),
            readRate=read_rate,
            writeRate=write_rate,
            usage=share,
        )
    sampling.count_damaged(sink, host, "host_disk", damaged)


# Fields of a line of host_mem.data: time, then the seven numbers of /proc/<pid>/statm.
_MEM_FIELDS = 8
_RESIDENT_PAGES = 2
_KB_PER_PAGE = 4
_DECIMALS = 6


def decode_host_mem(host: HostDirectory, sink: Sink) -> None:
    """Write HOST_MEM_USAGE (host_mem.data, text): resident memory in percent of the host's.

    A row has the time of the earlier sample and the usage of the later sample.
    """
    samples = sampling.integer_rows(host, sink, "host_mem", _MEM_FIELDS)
    total_kb = host.info.decimal("memoryTotal")
    if total_kb is None:
        sink.anomaly(
            "host_memory_unknown", len(samples), f"{host.info.path} has no positive memoryTotal"
        )
        return
    if len(samples) < 2:
        return
    percent_of_a_page = Fraction(_KB_PER_PAGE * 100) / Fraction(total_kb)
    # Exact numbers, halves rounded to even, as the exporter's decimal arithmetic does.
    usage = [
        float(round(pages * percent_of_a_page, _DECIMALS))
        for pages in samples[1:, _RESIDENT_PAGES].tolist()
    ]
    sampling.write_samples(
        sink,
        host,
        "HOST_MEM_USAGE",
        host.clocks.monotonic.to_ns(samples[:-1, 0]),
        usage=np.array(usage),
    )


# Columns of /proc/net/dev.
_RECEIVED_BYTES, _SENT_BYTES = 0, 8
_NETWORK_FIELDS = 16
_BYTES_PER_MEGABIT = 125_000
_BYTES_PER_KB = 1024.0


@dataclass(slots=True)
class _NetworkSample:
    time_ns: int
    total_bytes: dict[str, int] = field(default_factory=dict)
    """Interface -> bytes sent and received so far."""


def decode_host_network(host: HostDirectory, sink: Sink) -> None:
    """Write HOST_NETWORK_USAGE (host_network.data, text): traffic between samples.

    A row has the time of the earlier sample. `speed` is the sum over all interfaces in bytes per
    second; `usage` is the mean over the active interfaces, in percent of the link speed of the last
    interface.
    """
    speeds_mbit = {}
    for card in host.info.records("netCard"):
        name, mbit = card.text("netCardName"), card.integer("speed")
        if name and mbit is not None and mbit > 0:
            speeds_mbit[name] = mbit
    times: list[int] = []
    usage: list[float] = []
    speed: list[float] = []
    for earlier, later in pairwise(_network_samples(host, sink, speeds_mbit)):
        times.append(earlier.time_ns)
        percent, rate = _traffic(earlier, later, speeds_mbit)
        usage.append(percent)
        speed.append(rate)
    if not times:
        return
    sampling.write_samples(
        sink,
        host,
        "HOST_NETWORK_USAGE",
        host.clocks.monotonic.to_ns(np.array(times, np.int64)),
        usage=sampling.rounded(np.array(usage), _DECIMALS),
        speed=np.array(speed),
    )


def _network_samples(
    host: HostDirectory, sink: Sink, speeds_mbit: Mapping[str, int]
) -> Iterator[_NetworkSample]:
    damaged = 0
    for time_ns, lines in sampling.timed_blocks(host, sink, "host_network"):
        sample = _NetworkSample(time_ns)
        for line in lines:
            name, colon, counters = line.partition(":")
            if not colon:
                continue  # one of the two heading lines of /proc/net/dev
            values = sampling.integers(counters)
            if values is None or len(values) < _NETWORK_FIELDS:
                damaged += 1
            elif name.strip() in speeds_mbit:
                sample.total_bytes[name.strip()] = values[_RECEIVED_BYTES] + values[_SENT_BYTES]
        yield sample
    sampling.count_damaged(sink, host, "host_network", damaged)


def _traffic(
    earlier: _NetworkSample, later: _NetworkSample, speeds_mbit: Mapping[str, int]
) -> tuple[float, float]:
    """Return the usage in percent and the traffic in bytes per second."""
    # The exporter subtracts seconds as float64, so its results have that noise.
    seconds = later.time_ns / 1e9 - earlier.time_ns / 1e9
    total, active, capacity = 0.0, 0, 0
    if seconds <= 0:
        return 0.0, 0.0
    for name, count in later.total_bytes.items():
        moved = count - earlier.total_bytes.get(name, count)
        if moved > 0:
            total += moved / _BYTES_PER_KB / seconds * _BYTES_PER_KB
            active += 1
            capacity = speeds_mbit[name] * _BYTES_PER_MEGABIT
    return (total / active / capacity * 100 if active else 0.0), total
