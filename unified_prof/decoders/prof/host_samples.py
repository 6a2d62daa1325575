"""CPU_USAGE: how much of every CPU the profiled process used, host_cpu.data (text).

HOST_DISK_USAGE: disk traffic of the profiled process, host_disk.data (text of iotop).

HOST_MEM_USAGE: resident memory of the profiled process, host_mem.data (text).

HOST_NETWORK_USAGE: traffic of the host's network cards, host_network.data (text).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from unified_prof.base.columns import Sink
from unified_prof.base.text import NS_PER_S
from unified_prof.decoders.prof import sampling
from unified_prof.decoders.prof.directory import HostDirectory, positive_decimal
from unified_prof.errors import RawFormatError

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


def decode_host_cpu(host: HostDirectory, sink: Sink) -> None:
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


_START = re.compile(r"start_time\s+(\d{1,19})\s*")
_NUMBER = r"(\d{1,15}(?:\.\d{1,9})?)"
_LINE = re.compile(
    rf"\s*\d\d:\d\d:\d\d\s+\S+\s+\S+\s+\S+\s+{_NUMBER}\s+([BKMG])/s\s+{_NUMBER}\s+([BKMG])/s"
    rf"\s+{_NUMBER}\s*%\s+{_NUMBER}\s*%"
)
_TOTALS = re.compile(r"\s*(?:Total|Actual|Current) DISK |\s*TIME\s")
_UNIT_BYTES = {"B": 1.0, "K": float(1 << 10), "M": float(1 << 20), "G": float(1 << 30)}


def decode_host_disk(host: HostDirectory, sink: Sink) -> None:
    """Write HOST_DISK_USAGE: one row a line, at the sampling interval from the start time.

    Rates are in bytes per second, usage is the percentage of time spent waiting for the disk.

    Raises:
        RawFormatError: the file has no start time or sample.json no sampling frequency.
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
            if match := _LINE.match(line):
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
        columns = {
            "timestampNs": host.clocks.monotonic.to_ns(steps.astype(np.int64) + start_ns),
            "readRate": read_rate,
            "writeRate": write_rate,
            "usage": share,
        }
        sampling.write_samples(sink, "HOST_DISK_USAGE", host, columns)
    sampling.count_damaged(sink, host, "host_disk.data", damaged)


_FIELDS = 8  # time, then the seven numbers of /proc/<pid>/statm
_RESIDENT_PAGES = 2
_KB_PER_PAGE = 4
_DECIMALS = 6


def decode_host_mem(host: HostDirectory, sink: Sink) -> None:
    """Write HOST_MEM_USAGE: percent of the host's memory between neighbouring samples.

    A row has the time of the earlier sample and the usage of the later one.
    """
    file = host.data.get("host_mem")
    if file is None:
        return
    table = sampling.IntegerRows(host, sink, "host_mem.data", _FIELDS).read(file)
    total_kb = host.info.decimal("memoryTotal")
    if total_kb is None:
        sink.anomaly(
            "host_memory_unknown", len(table), f"{host.info.path} has no positive memoryTotal"
        )
        return
    if len(table) < 2:
        return
    percent_of_a_page = Fraction(_KB_PER_PAGE * 100) / Fraction(total_kb)
    # Rounded as the exporter's decimal numbers are: exactly, halves to the even digit.
    usage = [
        float(round(pages * percent_of_a_page, _DECIMALS))
        for pages in table[1:, _RESIDENT_PAGES].tolist()
    ]
    columns = {
        "timestampNs": host.clocks.monotonic.to_ns(table[:-1, 0]),
        "usage": np.array(usage),
    }
    sampling.write_samples(sink, "HOST_MEM_USAGE", host, columns)


_RECEIVED, _SENT = 0, 8  # columns of /proc/net/dev
_FIELDS_HOST_NETWORK = 16
_BYTES_PER_MEGABIT = 125_000
_BYTES_PER_KB = 1024.0


@dataclass(slots=True)
class _HostNetworkMoment:
    time_ns: int
    bytes_of: dict[str, int] = field(default_factory=dict)
    """Bytes sent and received so far, by interface."""


def decode_host_network(host: HostDirectory, sink: Sink) -> None:
    """Write HOST_NETWORK_USAGE: bytes per second and percent between neighbouring samples.

    A row has the time of the earlier sample. `speed` is that of all cards together, `usage` the
    mean of the cards that were active in relation to the speed of the last one of these.
    """
    speeds = _card_speeds(host)
    times: list[int] = []
    usage: list[float] = []
    speed: list[float] = []
    earlier: _HostNetworkMoment | None = None
    for later in _moments_host_network(host, sink, speeds):
        if earlier is not None:
            times.append(earlier.time_ns)
            percent, rate = _between(earlier, later, speeds)
            usage.append(percent)
            speed.append(rate)
        earlier = later
    if not times:
        return
    columns = {
        "timestampNs": host.clocks.monotonic.to_ns(np.array(times, np.int64)),
        "usage": sampling.rounded(np.array(usage), 6),
        "speed": np.array(speed),
    }
    sampling.write_samples(sink, "HOST_NETWORK_USAGE", host, columns)


def _card_speeds(host: HostDirectory) -> dict[str, int]:
    """Return Mbit/s of every card that info.json describes."""
    cards = {}
    for card in host.info.records("netCard"):
        name, speed = card.text("netCardName"), card.integer("speed")
        if name and speed is not None and speed > 0:
            cards[name] = speed
    return cards


def _moments_host_network(
    host: HostDirectory, sink: Sink, speeds: Mapping[str, int]
) -> Iterator[_HostNetworkMoment]:
    damaged = 0
    for time_ns, lines in sampling.timed_blocks(host, sink, "host_network"):
        moment = _HostNetworkMoment(time_ns)
        for line in lines:
            name, colon, counters = line.partition(":")
            if not colon:
                continue  # the two heading lines of /proc/net/dev
            values = sampling.integers(counters)
            if values is None or len(values) < _FIELDS_HOST_NETWORK:
                damaged += 1
            elif name.strip() in speeds:
                moment.bytes_of[name.strip()] = values[_RECEIVED] + values[_SENT]
        yield moment
    sampling.count_damaged(sink, host, "host_network.data", damaged)


def _between(
    earlier: _HostNetworkMoment, later: _HostNetworkMoment, speeds: Mapping[str, int]
) -> tuple[float, float]:
    """Return percent of the capacity and bytes per second."""
    # Seconds are subtracted as float64, as the exporter does: its results carry that noise.
    seconds = later.time_ns / 1e9 - earlier.time_ns / 1e9
    total, cards, capacity = 0.0, 0, 0
    if seconds <= 0:
        return 0.0, 0.0
    for name, sent_and_received in later.bytes_of.items():
        moved = sent_and_received - earlier.bytes_of.get(name, sent_and_received)
        if moved > 0:
            total += moved / _BYTES_PER_KB / seconds * _BYTES_PER_KB
            cards += 1
            capacity = speeds[name] * _BYTES_PER_MEGABIT
    return (total / cards / capacity * 100 if cards else 0.0), total
