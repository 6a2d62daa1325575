"""HOST_MEM_USAGE: resident memory of the profiled process, host_mem.data (text)."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from unified_prof.columns import Sink
from unified_prof.decoders.prof.raw import sampling
from unified_prof.decoders.prof.raw.directory import HostDirectory

_FIELDS = 8  # time, then the seven numbers of /proc/<pid>/statm
_RESIDENT_PAGES = 2
_KB_PER_PAGE = 4
_DECIMALS = 6


def decode(host: HostDirectory, sink: Sink) -> None:
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
