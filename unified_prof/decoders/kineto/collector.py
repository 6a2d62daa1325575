"""Collects the events of a trace into columns by kind; completes the data of collectives.

torch truncates long lists of ranks with `...`, records the peer of a send or receive as global rank
(in older versions as group rank), and records the rank of the process only once per trace. The
tables contain group ranks, as in the vendors' databases.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from unified_prof.arrays.grouping import Bools, Ints
from unified_prof.base.columns import MISSING, NOT_AVAILABLE, Coverage, Sink, ints
from unified_prof.decoders.gpu import rows as r
from unified_prof.decoders.gpu.pools import (
    ANNOTATION_PREFIX,
    PARAMETERS_OPERATION,
    Collective,
    Collectives,
    parse_json,
)
from unified_prof.decoders.kineto import events as ev
from unified_prof.decoders.kineto.events import PHASES, CollectiveArgs, Kind, Kinds, Phases
from unified_prof.decoders.kineto.fields import Fields, to_float64, to_int64, us_to_ns
from unified_prof.decoders.kineto.merged import Labels
from unified_prof.decoders.spool import Rows, windows

_GAP = "..."
# Annotation of a transfer, and the group rank of its peer: `send 0->1`, `recv 0<-1`.
_TRANSFER = re.compile(r"(send|recv) \d{1,9}(?:->|<-)(\d{1,9})", re.ASCII)
# Maximum size of a group whose ranks are computed from start and stride.
_MAX_RANKS = 1 << 20
Ranks = tuple[int, ...]


def listed_ranks(text: str) -> Ranks | None:
    """Parse a list of ranks such as `[0, 1, 2]`; return None if it is incomplete or invalid."""
    return _numbers(parse_json(text.encode("utf-8", "replace")))


def strided_ranks(start: int, stride: int, size: int) -> Ranks | None:
    """Return the ranks of an evenly spaced group, None if the numbers are invalid."""
    if start < 0 or not 0 < size <= _MAX_RANKS or (stride <= 0 and size > 1):
        return None
    return tuple(start + number * max(stride, 1) for number in range(size))


def listed_groups(distributed: Mapping[str, Any]) -> dict[str, tuple[str, Ranks]]:
    """Return name -> (description, global ranks) of the groups in `distributedInfo`."""
    groups = {}
    listed = distributed.get("pg_config")
    for group in listed if isinstance(listed, list) else ():
        if isinstance(group, dict):
            ranks = group.get("ranks")
            known = listed_ranks(ranks) if isinstance(ranks, str) else _numbers(ranks)
            if known is not None:
                name = str(group.get("pg_name", ""))
                groups[name] = (str(group.get("pg_desc", "") or name), known)
    return groups


def complete_collectives(
    collectives: list[Collective],
    session: Mapping[str, tuple[str, Ranks]],
    rank: int,
    count: Callable[[str, int, str], None],
) -> dict[str, tuple[str, Ranks]]:
    """Complete ranks, source and target of collectives in place; return all groups by name.

    `session` contains the groups in `distributedInfo`; `rank` is that of the trace, or `MISSING`.
    `count` is called with the anomaly if a peer is not in its group.
    """
    groups = dict(session)
    outside = 0
    for number, call in enumerate(collectives):
        ranks = _group_ranks(call, session)
        if ranks is not None:
            if call.group != NOT_AVAILABLE:
                known = call.group_description != NOT_AVAILABLE
                title = call.group_description if known else call.group
                groups.setdefault(call.group, (title, ranks))
            call = replace(
                call,
                group_ranks=json.dumps(list(ranks)),
                group_size=call.group_size if call.group_size != MISSING else len(ranks),
            )
        ends = _endpoints(call, ranks, rank)
        if ranks is not None:
            outside += sum(end != MISSING and end not in ranks for end in ends)
            source, target = (ranks.index(end) if end in ranks else MISSING for end in ends)
        else:
            source, target = ends
        collectives[number] = replace(call, source_rank=source, target_rank=target)
    if outside:
        count("peer_outside_group", outside, "skipped: the rank is not in its group")
    return groups


def _group_ranks(call: Collective, session: Mapping[str, tuple[str, Ranks]]) -> Ranks | None:
    """Return the global ranks of a call's group from its list, its group name, or its stride."""
    ranks = listed_ranks(call.group_ranks)
    if ranks is not None:
        return ranks
    before, gap, _ = call.group_ranks.partition(_GAP)  # a shortened list
    first_ranks = (listed_ranks(before.rstrip(", ") + "]") if gap else None) or ()
    for candidate in (session.get(call.group, ("", None))[1], call.strided_ranks):
        if candidate and candidate[: len(first_ranks)] == first_ranks:
            return candidate
    return None


def _endpoints(call: Collective, ranks: Ranks | None, rank: int) -> tuple[int, int]:
    """Return the global ranks of source and target, `MISSING` if unknown."""
    kind = call.name.lower()
    if kind not in ("send", "recv"):
        return call.source_rank, call.target_rank
    peer = call.target_rank if kind == "send" else call.source_rank
    if peer == MISSING and ranks is not None and 0 <= call.peer < len(ranks):
        peer = ranks[call.peer]
    return (rank, peer) if kind == "send" else (peer, rank)


def _numbers(value: Any) -> Ranks | None:
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        return None
    return tuple(value) if all(type(rank) is int and rank >= 0 for rank in value) else None


class TraceCollectives(Collectives):
    """Maps the JSON arguments of a collective to its number."""

    def __missing__(self, key: bytes) -> int:
        args = parse_collective(key)
        return MISSING if args is None else self.number(args)


_COLLECTIVE_NUMBERS = (
    *("group_size", "in_elements", "out_elements", "source_rank", "target_rank", "sequence"),
    *("rank", "rank_start", "rank_stride"),
)
_COLLECTIVE_TEXTS = ("group_description", "group_ranks", "dtype", "in_split", "out_split")


def parse_collective(text: bytes) -> Collective | None:
    """Parse the collective from the arguments of an event; return None if there is none."""
    try:
        args = msgspec.json.decode(text, type=CollectiveArgs)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if args.collective is None:
        return None
    values, _ = to_int64([getattr(args, name) for name in _COLLECTIVE_NUMBERS])
    numbers = dict(zip(_COLLECTIVE_NUMBERS, values.tolist(), strict=True))
    peer, start, stride = (numbers.pop(name) for name in ("rank", "rank_start", "rank_stride"))
    texts: dict[str, Any] = {name: _text(getattr(args, name)) for name in _COLLECTIVE_TEXTS}
    name = _text(args.collective)
    return Collective(
        name=name,
        group=_text(args.group_name),
        peer=peer if name.lower() in ("send", "recv") else MISSING,
        strided_ranks=strided_ranks(start, stride, numbers["group_size"]) or (),
        **numbers,
        **texts,
    )


def from_annotation(name: str, elements: int, dtype: str) -> Collective:
    """Return the collective for an annotation such as `nccl:send 0->1` and its first input."""
    kind = name.removeprefix(ANNOTATION_PREFIX)
    transfer = _TRANSFER.fullmatch(kind)
    return Collective(
        name=transfer[1] if transfer else kind,
        peer=int(transfer[2]) if transfer else MISSING,
        dtype=dtype or NOT_AVAILABLE,
        in_elements=elements,
    )


def _text(value: Any) -> str:
    if value is None or value == "":
        return NOT_AVAILABLE
    return str(parse_json(value) if isinstance(value, bytes) else value)


_MEMORY_EVENT = "[memory]"
_OUT_OF_MEMORY_EVENT = "[OutOfMemory]"
# pid of operations in traces of builds of torch without Kineto, whose events have no category.
_PROCESS_WITHOUT_KINETO = "CPU functions"
_MAX_FLOWS = 10_000  # Flows that are kept of each forward thread.
_IDS_PER_BLOCK = 1024  # At most: torch gives each thread blocks of ids, whose last is not full.
_SAMPLE_SHARE = 0.1  # Below this share of the ids, operations were removed from the file.
_MIN_OPERATION_NS = 100  # Ids that grow faster than operations can run are not those of torch.
_CPU_DEVICE_TYPE = 0  # c10::DeviceType::CPU in allocator events.


class Collector(Fields):
    """Context manager that collects the rows of one trace before they are joined."""

    def __init__(self, sink: Sink, is_outside: Callable[[str], bool]) -> None:
        super().__init__(sink, is_outside)
        self.collectives: TraceCollectives = TraceCollectives()
        self.labels = Labels()
        self._phases = Phases(sink.anomaly)
        self.calling: set[int] = set()  # Numbers of threads with runtime calls.
        self._unpaired = 0  # begin and end events, less the complete events
        self.unsupported = 0  # Number of events of phases without a table, such as counters.
        self.id_blocks: set[int] = set()  # Blocks in which the ids of operations are.
        self.has_memory_in_use = False  # True if allocator events contain the memory in use.
        # (thread, start) of a backward range -> thread of the forward operation.
        self.forward_of: dict[tuple[int, int], int] = {}
        self._open_flows: dict[bytes, int] = {}
        self._flows_from: Counter[int] = Counter()
        self._kinds = Kinds()
        self._collect = {
            Kind.OPERATION: self._operations,
            Kind.ANNOTATION: self._annotations,
            Kind.FRAME: self._frames,
            Kind.CALL: self._calls,
            Kind.KERNEL: self._gpu_tasks,
            Kind.COPY: self._gpu_tasks,
            Kind.SET: self._gpu_tasks,
            Kind.GPU_ANNOTATION: self._gpu_annotations,
            Kind.SYNC: self._syncs,
            Kind.GARBAGE_COLLECTION: self._garbage_collections,
            Kind.INSTANT: self._instants,
            Kind.FLOW: self._flows,
            Kind.OTHER: self._others,
            Kind.UNKNOWN: self._unknown,
            Kind.LABEL: self._labels,
        }

    def add(self, events: Sequence[ev.Event]) -> None:
        """Add a slice of events."""
        groups: dict[tuple[ev.Scalar, ev.Scalar], list[ev.Event]] = {}
        append: dict[tuple[ev.Scalar, ev.Scalar], Callable[[ev.Event], None]] = {}
        for event in events:  # hot loop: one lookup and one call per event
            key = (event.ph, event.cat)
            try:
                append[key](event)
            except KeyError:
                members = groups[key] = [event]
                append[key] = members.append
        phased = False
        for key, members in groups.items():
            if key[0] in PHASES:
                phased = True
                self._unpaired += len(members)
                continue
            kind = self._kinds[key]
            self.counts[kind.value] += len(members)
            before = self.dropped
            self._collect[kind](kind, members)
            self.skipped[kind.value] += self.dropped - before
        if phased:
            self._add_complete(self._phases.complete([e for e in events if e.ph in PHASES]))

    @property
    def depends_on_order(self) -> bool:
        """True if events refer to others by their order in the file, or merged ranks by label."""
        return self._unpaired > 0 or self.labels.are_used

    def add_figures(self, more: Mapping[str, Any]) -> None:
        """Add the counts and limits of another collector."""
        for name in ("counts", "skipped", "activity"):
            mine = getattr(self, name)
            for key, number in more[name].items():
                mine[key] += number
        self.devices |= more["devices"]
        if more["span"] is not None:
            self.extend_span(*more["span"])
        self.max_correlation = max(self.max_correlation, more["max_correlation"])
        self.links_to_operations |= more["links_to_operations"]
        self.id_blocks |= more["id_blocks"]
        self.has_memory_in_use |= more["has_memory_in_use"]
        self.unsupported += more["unsupported"]

    def finish(self) -> None:
        """Add the events that have a begin but no end."""
        self._add_complete(self._phases.rest(self.span[1] if self.span else 0))
        if self.forward_of:
            self._find_forward_threads()
        if not self.max_correlation and self.calls.rows and self.gpu.rows:
            # Old torch on ROCm: the `External id` of calls and tasks is their correlation id.
            for name in ("calls", "gpu"):
                self.replace(name, self._with_correlations(name))
            self.links_to_operations = False
        full = (len(self.id_blocks) - len(self.threads) - 1) * _IDS_PER_BLOCK
        if self.host.rows < _SAMPLE_SHARE * full and self._numbers_operations():
            detail = f"{self.host.rows:,} of more than {full:,} operations are in the file"
            self.sink.anomaly("sampled_trace", full - self.host.rows, detail)

    def _with_correlations(self, name: str) -> Iterator[Rows]:
        """Yield the rows of a spool with their external ids as correlation ids."""
        for (rows,) in windows(getattr(self, name)):
            numbered = rows.copy()
            numbered["correlation"] = rows["external"]
            self.note_correlations(numbered)
            yield numbered

    def _numbers_operations(self) -> bool:
        """Return False if the ids of operations span more than could run in the recorded time."""
        begin_ns, end_ns = self.span or (0, 0)
        count = (max(self.id_blocks) - min(self.id_blocks) - 1) * _IDS_PER_BLOCK
        return count * _MIN_OPERATION_NS <= (end_ns - begin_ns) * max(len(self.threads), 1)

    def add_coverage(self, coverage: Coverage) -> None:
        """Add the events of the file by kind."""
        unknown = Kind.UNKNOWN.value
        counts = {kind: count for kind, count in self.counts.items() if kind != unknown}
        coverage.add_events(counts, self.skipped)
        coverage.add(
            unknown,
            "events",
            self.counts[unknown],
            skipped=self.skipped[unknown],
            without_table=self.unsupported,
        )
        coverage.add("end", "events", self._unpaired, skipped=self._phases.skipped)

    def _find_forward_threads(self) -> None:
        """Find the thread for each `Fwd thread id`, a number that only torch uses."""
        processes = self.threads.process_ids
        starts = np.array([start for _, start in self.forward_of])
        for (host,) in windows(self.host):
            nodes = host[(host["forward_thread"] > 0) & np.isin(host["start"], starts)]
            places = zip(nodes["thread"].tolist(), nodes["start"].tolist(), strict=True)
            for place, number in zip(places, nodes["forward_thread"].tolist(), strict=True):
                if (forward := self.forward_of.get(place)) is not None:
                    self.forward_threads[processes[place[0]], number] = forward

    def _add_complete(self, events: tuple[list[ev.Event], list[ev.Event]]) -> None:
        nested, asynchronous = events
        self._unpaired -= len(nested) + len(asynchronous)
        if nested:
            self.add(nested)
        if asynchronous:
            self.counts[Kind.OTHER.value] += len(asynchronous)
            self._others(Kind.OTHER, asynchronous)

    def _operations(self, kind: Kind, events: list[ev.Event]) -> None:
        args = self.arguments(events, ev.OperationArgs)
        rows, valid = self.timed(events, r.HOST)
        names = self.name_ids(events)
        rows["thread"] = self.thread_numbers(events)
        rows["name"] = names
        is_operation = np.full(len(events), kind is Kind.OPERATION)
        if self.names.steps:
            is_operation &= ~np.isin(names, list(self.names.steps))
        rows["is_operation"] = is_operation
        rows["finished"] = ints([a.finished is not False for a in args])
        rows["external"] = self.external_ids(args)
        self.id_blocks.update(np.unique(rows["external"][valid] // _IDS_PER_BLOCK).tolist())
        rows["sequence"] = self.ids([a.sequence_number for a in args])
        rows["forward_thread"] = self.ids([a.forward_thread for a in args])
        rows["signature"] = self.signature_numbers(args)
        rows["inputs"] = self.raw_texts([a.concrete_inputs for a in args])
        modules = [a.module_hierarchy for a in args]
        rows["module"] = ints([self.names[text] if text else MISSING for text in modules])
        chain_of = self.chains.from_text
        rows["stack"] = ints([chain_of(a.call_stack) if a.call_stack else MISSING for a in args])
        rows["collective"] = self._host_collectives(events, names, rows["signature"])
        self.count_invalid("unfinished_event", valid & (rows["finished"] == 0), events, "kept")
        self.host.append(_valid(rows, valid))

    def _host_collectives(self, events: list[ev.Event], names: Ints, signatures: Ints) -> Ints:
        """Return the number of each event's collective, MISSING for other events."""
        numbers = np.full(len(events), MISSING)
        for index in np.flatnonzero(np.isin(names, list(self.names.collectives))).tolist():
            name = events[index].name
            if name == PARAMETERS_OPERATION:
                if isinstance(events[index].args, msgspec.Raw):  # else it has no parameters
                    numbers[index] = self.collectives[bytes(events[index].args)]
                continue
            signature = int(signatures[index])
            known = signature != MISSING
            numbers[index] = self.collectives.number(
                from_annotation(
                    str(name),
                    self.signatures.elements[signature] if known else MISSING,
                    self.signatures.first_type[signature] if known else "",
                )
            )
        return numbers

    def _annotations(self, kind: Kind, events: list[ev.Event]) -> None:
        if events := self._without_collections(kind, events):
            self._operations(kind, events)

    def _without_collections(self, kind: Kind, events: list[ev.Event]) -> list[ev.Event]:
        """Add the garbage collections among `events`, and return the others."""
        collections = [event for event in events if event.name == ev.COLLECTION_NAME]
        if not collections:
            return events
        self._garbage_collections(kind, collections)
        return [event for event in events if event.name != ev.COLLECTION_NAME]

    def _frames(self, kind: Kind, events: list[ev.Event]) -> None:
        events = self._without_collections(kind, events)
        rows, valid = self.timed(events, r.FRAME)
        rows["thread"] = self.thread_numbers(events)
        frames = self.chains.frames
        rows["frame"] = ints([frames[event.name] for event in events])
        self.frames.append(_valid(rows, valid))

    def _calls(self, _: Kind, events: list[ev.Event]) -> None:
        args = self.arguments(events, ev.CallArgs)
        rows, valid = self.timed(events, r.CALL)
        rows["thread"] = self.thread_numbers(events)
        rows["name"] = self.name_ids(events)
        rows["external"] = self.external_ids(args)
        rows["geometry"] = self.geometry_numbers(args)
        for field in ("correlation", "size", "shared_memory"):
            rows[field] = self.ids(list(map(attrgetter(field), args)))
        for field in ("operation", "operation_name", "signature", "collective"):
            rows[field] = MISSING
        self.calling.update(np.unique(rows["thread"]).tolist())
        self.note_correlations(rows)
        self.calls.append(_valid(rows, valid))

    def _gpu_tasks(self, kind: Kind, events: list[ev.Event]) -> None:
        args = self.arguments(events, ev.GpuArgs)
        rows, valid = self.timed(events, r.GPU_TASK)
        names = self.name_ids(events)
        rows["name"] = names
        rows["kind"] = {Kind.COPY: r.COPY, Kind.SET: r.SET}.get(kind, r.KERNEL)
        if kind is Kind.KERNEL:
            rows["kind"][self.are_communication(names)] = r.COMMUNICATION
        rows["device"], rows["stream"] = self.place(events, args)
        rows["external"] = self.external_ids(args)
        rows["geometry"] = self.geometry_numbers(args)
        for field in "context correlation queued registers shared_memory size".split():
            rows[field] = self.ids(list(map(attrgetter(field), args)))
        for field in ("blocks_per_sm", "warps_per_sm", "occupancy", "bandwidth"):
            rows[field] = to_float64(list(map(attrgetter(field), args)))
        rows["graph"] = self.ids([a.graph_id for a in args])
        rows["graph_node"] = self.ids([a.graph_node_id for a in args])
        rows["counted"] = MISSING
        number = self.collectives
        calls = [
            MISSING if a.collective is None else number[bytes(event.args)]
            for a, event in zip(args, events, strict=True)
        ]
        rows["collective"] = ints(calls)
        # Codes of labels in the pids of devices, MISSING without label.
        codes = {pid: self.labels.code(pid) for pid in {event.pid for event in events}}
        rows["process"] = ints([codes[event.pid] for event in events])
        for field in ("connection", "thread", "operation_name", "signature"):
            rows[field] = MISSING
        rows = _valid(rows, valid)
        self.note_correlations(rows)
        self.devices.update(np.unique(rows["device"]).tolist())
        linked = (rows["external"] != MISSING) & (rows["external"] != rows["correlation"])
        self.links_to_operations = self.links_to_operations or bool(linked.any())
        self.gpu.append(rows)

    def _gpu_annotations(self, _: Kind, events: list[ev.Event]) -> None:
        args = self.arguments(events, ev.ExternalIdArgs)
        rows, valid = self.timed(events, r.GPU_ANNOTATION)
        rows["name"] = self.name_ids(events)
        rows["device"], rows["stream"] = self.place(events, args)
        rows["external"] = self.ids([a.external_id for a in args])
        self.gpu_annotations.append(_valid(rows, valid))

    def _syncs(self, _: Kind, events: list[ev.Event]) -> None:
        args = self.arguments(events, ev.SyncArgs)
        rows, valid = self.timed(events, r.SYNC)
        rows["kind"] = self.name_ids(events)
        rows["device"], rows["stream"] = self.place(events, args)
        for field in ("context", "correlation", "wait_stream", "wait_event", "wait_record"):
            rows[field] = self.ids(list(map(attrgetter(field), args)))
        self.syncs.append(_valid(rows, valid))

    def _garbage_collections(self, _: Kind, events: list[ev.Event]) -> None:
        rows, valid = self.timed(events, r.COLLECTION)
        rows["thread"] = self.thread_numbers(events)
        self.collections.append(_valid(rows, valid))

    def _flows(self, _: Kind, events: list[ev.Event]) -> None:
        """Record both ends of flows from a forward operation to its backward node.

        The flows determine the thread of each `Fwd thread id`, so a few flows per thread are
        enough.
        """
        flows = [event for event in events if event.cat == ev.FORWARD_FLOW]
        if not flows:
            return
        starts, valid = us_to_ns([event.ts for event in flows])
        for event, start, is_valid in zip(flows, starts.tolist(), valid.tolist(), strict=True):
            thread, flow = self.threads[event.pid, event.tid], bytes(event.id)
            if event.ph == "s":
                if self._flows_from[thread] < _MAX_FLOWS:
                    self._flows_from[thread] += 1
                    self._open_flows[flow] = thread
            elif event.ph == "f" and is_valid:
                forward = self._open_flows.pop(flow, None)
                if forward is not None:
                    self.forward_of[thread, start] = forward

    def _instants(self, _: Kind, events: list[ev.Event]) -> None:
        memory = [event for event in events if event.name == _MEMORY_EVENT]
        if memory:
            self._allocations(memory)
        rest = [event for event in events if event.name != _MEMORY_EVENT]
        if rest:
            self._others(Kind.INSTANT, rest)
            failed = sum(event.name == _OUT_OF_MEMORY_EVENT for event in rest)
            self.sink.anomaly("out_of_memory", failed, "see UPROF_TRACE_EVENTS")

    def _allocations(self, events: list[ev.Event]) -> None:
        args = self.arguments(events, ev.MemoryArgs)
        rows, valid = self.timed(events, r.ALLOCATION, instant=True)
        rows["thread"] = self.thread_numbers(events)
        device_type = self.ids([a.device_type for a in args])
        device = self.relabeled(events, self.ids([a.device_id for a in args]))
        rows["device"] = np.where(device_type == _CPU_DEVICE_TYPE, MISSING, device)
        rows["address"] = self.ids([a.address for a in args])
        rows["owner"] = np.array(self.threads.process_ids)[rows["thread"]]
        size = self.ids([a.size for a in args], missing=0)
        rows["size"] = size
        for field in ("total_allocated", "total_reserved"):
            rows[field] = self.ids(list(map(attrgetter(field), args)))
        self.has_memory_in_use |= bool((rows["total_allocated"] != MISSING).any())
        self.count_invalid("memory_event_without_size", valid & (size == 0), events)
        self.devices.update(np.unique(rows["device"][rows["device"] >= 0]).tolist())
        self.allocations.append(rows[valid & (size != 0)])

    def _others(self, kind: Kind, events: list[ev.Event]) -> None:
        rows, valid = self.timed(events, r.OTHER, instant=kind is Kind.INSTANT)
        rows["category"] = [
            self.names["instant" if e.cat is None and kind is Kind.INSTANT else e.cat]
            for e in events
        ]
        rows["name"] = self.name_ids(events)
        places = self.places
        rows["place"] = [places.setdefault((e.pid, e.tid), len(places)) for e in events]
        if kind is Kind.INSTANT:
            rows["end"] = r.NO_END
        texts = [_compact(bytes(event.args)) for event in events]
        rows["args_at"] = [self.texts.append(text) for text in texts]
        rows["args_size"] = [len(text) for text in texts]
        self.other.append(_valid(rows, valid))

    def _unknown(self, kind: Kind, events: list[ev.Event]) -> None:
        spans = [event for event in events if event.ph == "X"]
        if operations := [event for event in spans if event.pid == _PROCESS_WITHOUT_KINETO]:
            self.counts[kind.value] -= len(operations)
            self.counts[Kind.OPERATION.value] += len(operations)
            self._operations(Kind.OPERATION, [replace(e, pid=0) for e in operations])
            spans = [event for event in spans if event.pid != _PROCESS_WITHOUT_KINETO]
        if spans:
            self.sink.anomaly("unknown_category", len(spans), f"category {spans[0].cat!r}")
            self._others(kind, spans)
        rest = [event for event in events if event.ph != "X"]
        if rest:
            detail = f"phase {rest[0].ph!r}, {rest[0].name!r}"
            self.sink.anomaly("unsupported_event", len(rest), detail)
            self.unsupported += len(rest)

    def _labels(self, _: Kind, events: list[ev.Event]) -> None:
        for event in events:
            label = parse_json(bytes(event.args))
            if not isinstance(label, dict):
                continue
            if event.name == "process_name" and "name" in label:
                self.threads.process_names[event.pid] = str(label["name"])
            elif event.name == "process_labels" and "labels" in label:
                self.threads.process_labels[event.pid] = str(label["labels"])
            elif event.name == "thread_name" and "name" in label:
                self.threads.thread_names[event.pid, event.tid] = str(label["name"])


def _compact(text: bytes) -> bytes:
    try:
        return msgspec.json.format(text, indent=-1) if text else text
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return text


def _valid(rows: Rows, valid: Bools) -> Rows:
    return rows if valid.all() else rows[valid]
