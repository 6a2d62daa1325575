"""The host side of a recording: calls and launches, ready to be joined with device logs."""

from __future__ import annotations

import numpy as np

from unified_prof.columns import Sink
from unified_prof.decoders.prof.collectives.communication import CommunicationWriter
from unified_prof.decoders.prof.collectives.communication_records import read_communication
from unified_prof.decoders.prof.host.api_events import read_calls, write_calls
from unified_prof.decoders.prof.host.captured_operators import read_captured
from unified_prof.decoders.prof.host.captured_streams import read_captures
from unified_prof.decoders.prof.host.collective_streams import read_collective_streams
from unified_prof.decoders.prof.host.compute_info import HostKnowledge
from unified_prof.decoders.prof.host.launches import Launches, launches_of
from unified_prof.decoders.prof.host.memory_copies import read_copies
from unified_prof.decoders.prof.host.operators import read_contexts, read_descriptions
from unified_prof.decoders.prof.host.task_track import (
    CallTree,
    place,
    read_host_tasks,
    without_lost_calls,
)
from unified_prof.decoders.prof.raw.directory import HostDirectory
from unified_prof.decoders.prof.raw.host_records import host_records
from unified_prof.decoders.prof.raw.platforms import V6_PLATFORMS
from unified_prof.decoders.prof.raw.timeline import Timeline
from unified_prof.decoders.prof.stages import Stage

_LEVEL0 = ("l0", "level0")


class HostSide:
    """Everything the host recorded about work for devices. Reading it writes CANN_API."""

    def __init__(self, host: HostDirectory, sink: Sink, stage: Stage) -> None:
        self.host = host
        self.timeline = Timeline(host.clocks.host_origin_ticks)
        with stage("calls"):
            calls = read_calls(host, self.timeline, sink)
            write_calls(calls, host, self.timeline, sink)
            tree = CallTree.of(calls)
            items, call_types = calls.items, calls.type_pairs()
            del calls
        with stage("launches"):
            self.tasks, types = read_host_tasks(host, self.timeline, sink)
            place(self.tasks, tree, items)
            self.tasks = without_lost_calls(self.tasks, tree, sink)
            self.node_contexts, self.communication_contexts = read_contexts(
                host, tree.node, tree.communication, self.timeline, sink
            )
            self.captures = read_captures(host, self.timeline, sink)
            self.copies = read_copies(host, self.timeline, sink)
        with stage("operator descriptions"):
            descriptions = read_descriptions(host, tree.node, self.timeline, sink)
            self.knowledge = HostKnowledge(
                items,
                tree,
                types,
                descriptions,
                host.dictionaries,
                read_collective_streams(host, sink),
                read_captured(host, descriptions.tensor_texts, sink),
                _is_level0(host),
            )
            records = read_communication(host, self.knowledge, self.timeline, sink)
        self.communication = CommunicationWriter(
            host, records, self.knowledge, call_types, self.timeline, sink
        )
        self.expanded_streams = _expanded_streams(host, sink)

    def device_ids(self) -> set[int]:
        """Return the devices that something was launched for."""
        return set(np.unique(self.tasks.device_id).tolist())

    def launches(self, device_id: int) -> Launches:
        """Return the launches for one device."""
        return launches_of(
            self.tasks,
            device_id,
            self.knowledge.types,
            self.node_contexts,
            self.communication_contexts,
            wide_task_ids=self.host.platform in V6_PLATFORMS,
        )


def _expanded_streams(host: HostDirectory, sink: Sink) -> bool:
    return any(
        bool((records["expand_status"] == 1).any())
        for records in host_records(host, "compact", "expand_stream_spec", sink)
    )


def _is_level0(host: HostDirectory) -> bool:
    level = host.sample.text("profLevel") or host.sample.text("prof_level")
    return level.lower() in _LEVEL0
