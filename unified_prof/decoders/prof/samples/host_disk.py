"""HOST_DISK_USAGE: disk traffic of the profiled process, host_disk.data (text of iotop)."""

from __future__ import annotations

import re

import numpy as np

from unified_prof.columns import Sink
from unified_prof.decoders.prof.raw import sampling
from unified_prof.decoders.prof.raw.directory import HostDirectory
from unified_prof.errors import RawFormatError
from unified_prof.units import NS_PER_S

_START = re.compile(r"start_time\s+(\d{1,19})\s*")
_NUMBER = r"(\d{1,15}(?:\.\d{1,9})?)"
_LINE = re.compile(
    rf"\s*\d\d:\d\d:\d\d\s+\S+\s+\S+\s+\S+\s+{_NUMBER}\s+([BKMG])/s\s+{_NUMBER}\s+([BKMG])/s"
    rf"\s+{_NUMBER}\s*%\s+{_NUMBER}\s*%"
)
_TOTALS = re.compile(r"\s*(?:Total|Actual|Current) DISK |\s*TIME\s")
_UNIT_BYTES = {"B": 1.0, "K": float(1 << 10), "M": float(1 << 20), "G": float(1 << 30)}


def decode(host: HostDirectory, sink: Sink) -> None:
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
