"""NPU_OP_MEM: memory that operators take and give back."""

from __future__ import annotations

import numpy as np

from unified_prof.columns import Sink
from unified_prof.decoders.prof.raw.directory import HostDirectory
from unified_prof.decoders.prof.raw.host_records import host_records

_COMPONENT = "GE"


def decode(host: HostDirectory, sink: Sink) -> None:
    """Write every task_memory_info record; a negative size is a release."""
    process = (host.info.integer("pid") or 0) << 32
    types = sink.strings.intern_all(("allocate", "release"))
    for records in host_records(host, "additional", "task_memory_info", sink):
        time_ns = host.clocks.host.to_ns(records["timestamp"])
        keep = time_ns >= host.session.start_ns
        rows, time_ns = records[keep], time_ns[keep]
        if not len(rows):
            continue
        size = rows["size_bytes"].astype(np.int64)
        sink.write(
            "NPU_OP_MEM",
            {
                "operatorName": host.dictionaries.string_ids(sink.strings, rows["node_id"]),
                "addr": rows["addr"].astype(np.int64),
                "type": types[(size < 0).astype(np.int64)],
                "size": np.abs(size),
                "timestampNs": time_ns,
                "globalTid": process | rows["thread_id"].astype(np.int64),
                "totalAllocate": rows["total_allocate"].astype(np.int64),
                "totalReserve": rows["total_reserve"].astype(np.int64),
                "component": sink.strings.intern(_COMPONENT),
                "deviceId": rows["device_id"].astype(np.int64),
            },
        )
