"""mc2_comm_info: which streams AI CPUs use for collectives that they run by themselves."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from unified_prof.columns import Sink
from unified_prof.decoders.prof.raw.directory import HostDirectory
from unified_prof.decoders.prof.raw.host_records import host_records
from unified_prof.decoders.prof.raw.platforms import DEVICE_COLLECTIVE_PLATFORMS


@dataclass(frozen=True, slots=True)
class CollectiveStreams:
    """Which streams serve which group of ranks; groups are hashes of their names."""

    of_kernels: dict[int, int] = field(default_factory=dict)
    """The group whose AI CPU kernels run on a stream."""
    of_tasks: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """The groups whose kernels put their tasks on a stream."""

    def kernel_streams(self) -> NDArray[np.int64]:
        """Return the streams of AI CPU kernels, ascending."""
        return np.array(sorted(self.of_kernels), np.int64)


def read_collective_streams(host: HostDirectory, sink: Sink) -> CollectiveStreams:
    """Read which streams AI CPUs use for which group, on chips that have such collectives."""
    streams = CollectiveStreams()
    if host.platform not in DEVICE_COLLECTIVE_PLATFORMS:
        return streams
    of_tasks: dict[int, dict[int, None]] = {}
    for records in host_records(host, "additional", "mc2_comm_info", sink):
        for record in records:
            group = int(record["group_name"])
            streams.of_kernels[int(record["stream_id"])] = group
            for stream in record["comm_stream_ids"][: int(record["stream_num"])].tolist():
                of_tasks.setdefault(stream, {})[group] = None
    streams.of_tasks.update((stream, tuple(groups)) for stream, groups in of_tasks.items())
    return streams
