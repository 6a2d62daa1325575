"""HOST_MEM_USAGE: resident memory of the profiled process, host_mem.data (text)."""

from __future__ import annotations

import numpy as np

from unified_prof.columns import Sink
from unified_prof.decoders.prof import samples
from unified_prof.decoders.prof.directory import HostDirectory

_FIELDS = 8  # time, then the seven numbers of /proc/<pid>/statm
_RESIDENT_PAGES = 2
_KB_PER_PAGE = 4


def decode(host: HostDirectory, sink: Sink) -> None:
    """Write HOST_MEM_USAGE: percent of the host's memory between neighbouring samples.

    A row has the time of the earlier sample and the usage of the later one.
    """
    file = host.data.get("host_mem")
    if file is None:
        return
    table = samples.IntegerRows(host, sink, "host_mem.data", _FIELDS).read(file)
    total_kb = host.info.decimal("memoryTotal")
    if total_kb is None:
        sink.anomaly(
            "host_memory_unknown", len(table), f"{host.info.path} has no positive memoryTotal"
        )
        return
    if len(table) < 2:
        return
    used = table[1:, _RESIDENT_PAGES].astype(np.float64) * _KB_PER_PAGE / float(total_kb) * 100
    columns = {
        "timestampNs": host.clocks.monotonic.to_ns(table[:-1, 0]),
        "usage": samples.rounded(used, 6),
    }
    samples.write_samples(sink, "HOST_MEM_USAGE", host, columns)
