"""Groups of ranks: who is in each, and who sends to whom, also where events name only the peer.

torch writes ranks of a group with `...` in their middle where they are many, the peer of a send or
receive by its global number (by its number inside the group in older versions), and never the own
rank, which the trace says as a whole. Tables count ranks inside the group, as vendors do.

What a trace says of collectives: the parameters of each call.

Takes events as they come and puts their columns away, kind by kind.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np

from unified_prof.arrays.types import Bools
from unified_prof.base.columns import Sink
from unified_prof.base.vocabulary import NOT_AVAILABLE
from unified_prof.decoders.gpu import rows as r
from unified_prof.decoders.gpu.collectives import Collective, Collectives
from unified_prof.decoders.gpu.memory import MISSING, Int64s, ints
from unified_prof.decoders.gpu.pools import ANNOTATION_PREFIX, PARAMETERS_OPERATION, parse_json
from unified_prof.decoders.kineto import events as ev
from unified_prof.decoders.kineto.events import PHASES, CollectiveArgs, Kind, Kinds, Phases
from unified_prof.decoders.kineto.fields import Fields, to_float64, to_int64, us_to_ns
from unified_prof.decoders.kineto.merged import Labels
from unified_prof.decoders.spool import Rows, windows

_GAP = "..."
_MOST_RANKS = 1 << 20

Ranks = tuple[int, ...]


def listed_ranks(text: str) -> Ranks | None:
    """Return the ranks of `[0, 1, 2]`, None where that is no whole list."""
    return _numbers(parse_json(text.encode("utf-8", "replace")))


def strided_ranks(start: int, stride: int, size: int) -> Ranks | None:
    """Return the ranks of a group that is evenly spaced, None where these are not such numbers."""
    if start < 0 or not 0 < size <= _MOST_RANKS or (stride <= 0 and size > 1):
        return None
    return tuple(start + number * max(stride, 1) for number in range(size))


def of_session(distributed: Mapping[str, Any]) -> dict[str, tuple[str, Ranks]]:
    """Return description and global ranks of the groups that a trace lists, by name."""
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


def complete(
    collectives: list[Collective],
    session: Mapping[str, tuple[str, Ranks]],
    rank: int,
    count: Callable[[str, int, str], None],
) -> dict[str, tuple[str, Ranks]]:
    """Complete calls in place: ranks of groups, source and target; return all groups there are.

    Args:
        collectives: Distinct calls.
        session: Groups that the trace lists.
        rank: Whose trace it is, `MISSING` where it does not say.
        count: Told of peers that are not in their group.
    """
    groups = dict(session)
    strangers = 0
    for number, one in enumerate(collectives):
        ranks = _ranks_of(one, session)
        if ranks is not None:
            described = one.group_description
            if one.group != NOT_AVAILABLE:
                title = one.group if described == NOT_AVAILABLE else described
                groups.setdefault(one.group, (title, ranks))
            one = replace(
                one,
                group_ranks=json.dumps(list(ranks)),
                group_size=one.group_size if one.group_size != MISSING else len(ranks),
            )
        source, target = _ends(one, ranks, rank)
        if ranks is not None:
            inside = [MISSING if end not in ranks else ranks.index(end) for end in (source, target)]
            strangers += sum(
                end != MISSING and at == MISSING
                for end, at in zip((source, target), inside, strict=True)
            )
            source, target = inside
        collectives[number] = replace(one, source_rank=source, target_rank=target)
    if strangers:
        count("peer_outside_group", strangers, "a rank that its group does not have: left out")
    return groups


def _ranks_of(one: Collective, session: Mapping[str, tuple[str, Ranks]]) -> Ranks | None:
    """Return the global ranks of a call's group, from whatever says all of them."""
    told = listed_ranks(one.group_ranks)
    if told is not None:
        return told
    begins = _begins(one.group_ranks)
    known = session.get(one.group, ("", None))[1]
    for ranks in (known, one.strided_ranks):
        if ranks and ranks[: len(begins)] == begins:
            return ranks
    return None


def _begins(text: str) -> Ranks:
    """Return the ranks before the `...` of a list that torch cut."""
    before, gap, _ = text.partition(_GAP)
    numbers = listed_ranks(before.rstrip(", ") + "]") if gap else None
    return numbers or ()


def _ends(one: Collective, ranks: Ranks | None, own: int) -> tuple[int, int]:
    """Return the global numbers of source and target; `MISSING` where nobody says them."""
    kind = one.name.lower()
    if kind not in ("send", "recv"):
        return one.source_rank, one.target_rank
    peer = one.target_rank if kind == "send" else one.source_rank
    if peer == MISSING and ranks is not None and 0 <= one.peer < len(ranks):
        peer = ranks[one.peer]
    return (own, peer) if kind == "send" else (peer, own)


def _numbers(value: Any) -> Ranks | None:
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        return None
    return tuple(value) if all(type(one) is int and one >= 0 for one in value) else None


class TraceCollectives(Collectives):
    """The same, by the JSON text of the arguments that describe them."""

    def __missing__(self, key: bytes) -> int:
        """Return the number of the collective that `args`, as JSON text, describe."""
        args = parse_collective(key)
        return MISSING if args is None else self.number(args)


_COLLECTIVE_NUMBERS = (
    *("group_size", "in_elements", "out_elements", "source_rank", "target_rank", "sequence"),
    *("rank", "rank_start", "rank_stride"),
)
_COLLECTIVE_TEXTS = ("group_description", "group_ranks", "dtype", "in_split", "out_split")


def parse_collective(text: bytes) -> Collective | None:
    """Read a collective's parameters from an event's arguments; None if there are none."""
    try:
        args = msgspec.json.decode(text, type=CollectiveArgs)
    except (msgspec.MsgspecError, UnicodeDecodeError):
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
    """Return what an `nccl:all_reduce` annotation and its first input say of a collective."""
    return Collective(
        name=name.removeprefix(ANNOTATION_PREFIX),
        dtype=dtype or NOT_AVAILABLE,
        in_elements=elements,
    )


def _text(value: Any) -> str:
    if value is None or value == "":
        return NOT_AVAILABLE
    return (
        value
        if isinstance(value, str)
        else str(parse_json(value) if isinstance(value, bytes) else value)
    )


_MEMORY_EVENT = "[memory]"
_OUT_OF_MEMORY_EVENT = "[OutOfMemory]"
# Flows that are kept of each forward thread.
_MAX_FLOWS = 10_000
_CPU_DEVICE_TYPE = 0
"""c10::DeviceType::CPU, of allocator events."""


class Collector(Fields):
    """The parts of one trace, decoded but not yet joined. A context manager."""

    def __init__(self, sink: Sink, is_outside: Callable[[str], bool]) -> None:
        super().__init__(sink, is_outside)
        self.collectives: TraceCollectives = TraceCollectives()
        self.labels = Labels()
        self._phases = Phases(sink.anomaly)
        self.calling: set[int] = set()
        """Numbers of the threads that made runtime calls."""
        self.says_memory_in_use = False
        """Whether allocator events say how much was in use after them."""
        self.forward_of: dict[tuple[int, int], int] = {}
        """(thread, start) of ranges of backward nodes -> thread of the forward operation."""
        self._open_flows: dict[bytes, int] = {}
        self._flows_from: Counter[int] = Counter()
        self._kinds = Kinds()
        self._take = {
            Kind.OPERATION: self._operations,
            Kind.ANNOTATION: self._operations,
            Kind.FRAME: self._frames,
            Kind.CALL: self._calls,
            Kind.KERNEL: self._gpu_tasks,
            Kind.COPY: self._gpu_tasks,
            Kind.SET: self._gpu_tasks,
            Kind.GPU_ANNOTATION: self._gpu_annotations_of,
            Kind.SYNC: self._syncs_of,
            Kind.GARBAGE_COLLECTION: self._garbage_collections,
            Kind.INSTANT: self._instants,
            Kind.FLOW: self._flows,
            Kind.OTHER: self._others,
            Kind.UNKNOWN: self._unknown,
            Kind.LABEL: self._labels,
        }

    def take(self, events: Sequence[ev.Event]) -> None:
        """Put away a slice of events."""
        groups: dict[tuple[ev.Scalar, ev.Scalar], list[ev.Event]] = {}
        append: dict[tuple[ev.Scalar, ev.Scalar], Callable[[ev.Event], None]] = {}
        for event in events:  # the hot loop: one lookup and one call an event
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
                continue
            kind = self._kinds[key]
            self.counts[kind.value] += len(members)
            if take := self._take.get(kind):
                take(kind, members)
        if phased:
            self._take_whole(self._phases.complete([e for e in events if e.ph in PHASES]))

    def finish(self) -> None:
        """Put away what began and never ended."""
        self._take_whole(self._phases.rest(self.span[1] if self.span else 0))
        if self.forward_of:
            self._find_forward_threads()

    def _find_forward_threads(self) -> None:
        """Find the thread of each id in `Fwd thread id`, which is a number of torch's own."""
        processes = self.threads.process_ids
        starts = np.array([start for _, start in self.forward_of])
        for (host,) in windows(self.host):
            nodes = host[(host["forward_thread"] > 0) & np.isin(host["start"], starts)]
            places = zip(nodes["thread"].tolist(), nodes["start"].tolist(), strict=True)
            for place, number in zip(places, nodes["forward_thread"].tolist(), strict=True):
                if (forward := self.forward_of.get(place)) is not None:
                    self.forward_threads[processes[place[0]], number] = forward

    def _take_whole(self, events: tuple[list[ev.Event], list[ev.Event]]) -> None:
        nested, asynchronous = events
        if nested:
            self.take(nested)
        if asynchronous:
            self.counts[Kind.OTHER.value] += len(asynchronous)
            self._others(Kind.OTHER, asynchronous)

    # ---- one method per kind

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
        rows["sequence"] = self.ids([a.sequence_number for a in args])
        rows["forward_thread"] = self.ids([a.forward_thread for a in args])
        rows["signature"] = self.signature_numbers(args)
        rows["inputs"] = self.raw_texts([a.concrete_inputs for a in args])
        rows["module"] = self.optional_texts([a.module_hierarchy for a in args])
        of_stack = self.chains.of_stack
        rows["stack"] = ints([of_stack(a.call_stack) if a.call_stack else MISSING for a in args])
        rows["collective"] = self._host_collectives(events, names, rows["signature"])
        self.count_odd("unfinished_event", valid & (rows["finished"] == 0), events, "kept")
        self.host.append(_valid(rows, valid))

    def _host_collectives(
        self, events: list[ev.Event], names: Int64s, signatures: Int64s
    ) -> Int64s:
        """Return the collective that each event tells of; few events do."""
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

    def _frames(self, _: Kind, events: list[ev.Event]) -> None:
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
        rows["correlation"] = self.ids([a.correlation for a in args])
        rows["external"] = self.external_ids(args)
        rows["size"] = self.ids([a.size for a in args])
        rows["geometry"] = self.geometry_numbers(args)
        rows["shared_memory"] = self.ids([a.shared_memory for a in args])
        for field in ("operation", "operation_name", "signature", "collective"):
            rows[field] = MISSING
        self.calling.update(np.unique(rows["thread"]).tolist())
        self.see_correlations(rows)
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
        for field in ("context", "correlation", "queued", "registers", "shared_memory", "size"):
            rows[field] = self.ids(list(map(attrgetter(field), args)))
        for field in ("blocks_per_sm", "warps_per_sm", "occupancy", "bandwidth"):
            rows[field] = to_float64(list(map(attrgetter(field), args)))
        rows["graph"] = self.ids([a.graph_id for a in args])
        rows["graph_node"] = self.ids([a.graph_node_id for a in args])
        rows["counted"] = MISSING
        rows["collective"] = ints(
            [
                MISSING if a.collective is None else self.collectives[bytes(event.args)]
                for a, event in zip(args, events, strict=True)
            ]
        )
        rows["process"] = self.device_labels(events)
        for field in ("connection", "thread", "operation_name", "signature"):
            rows[field] = MISSING
        rows = _valid(rows, valid)
        self.see_correlations(rows)
        self.devices.update(np.unique(rows["device"]).tolist())
        linked = (rows["external"] != MISSING) & (rows["external"] != rows["correlation"])
        self.links_to_operations = self.links_to_operations or bool(linked.any())
        self.gpu.append(rows)

    def _gpu_annotations_of(self, _: Kind, events: list[ev.Event]) -> None:
        args = self.arguments(events, ev.ExternalIdArgs)
        rows, valid = self.timed(events, r.GPU_ANNOTATION)
        rows["name"] = self.name_ids(events)
        rows["device"], rows["stream"] = self.place(events, args)
        rows["external"] = self.ids([a.external_id for a in args])
        self.gpu_annotations.append(_valid(rows, valid))

    def _syncs_of(self, _: Kind, events: list[ev.Event]) -> None:
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
        """Take both ends of flows from a forward operation to its backward node.

        They serve to find out which thread an id of `Fwd thread id` stands for, so some of each
        thread are enough.
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
            self._allocations_of(memory)
        rest = [event for event in events if event.name != _MEMORY_EVENT]
        if rest:
            self._others(Kind.INSTANT, rest)
            short = [event for event in rest if event.name == _OUT_OF_MEMORY_EVENT]
            if short:
                self.sink.anomaly("out_of_memory", len(short), "see UPROF_TRACE_EVENTS")

    def _allocations_of(self, events: list[ev.Event]) -> None:
        args = self.arguments(events, ev.MemoryArgs)
        rows, valid = self.timed(events, r.ALLOCATION, instant=True)
        rows["thread"] = self.thread_numbers(events)
        device_type = self.ids([a.device_type for a in args])
        device = self.relabelled(events, self.ids([a.device_id for a in args]))
        rows["device"] = np.where(device_type == _CPU_DEVICE_TYPE, MISSING, device)
        rows["address"] = self.ids([a.address for a in args])
        rows["owner"] = np.array(self.threads.process_ids)[rows["thread"]]
        size = self.ids([a.size for a in args], missing=0)
        rows["size"] = size
        rows["total_allocated"] = self.ids([a.total_allocated for a in args])
        rows["total_reserved"] = self.ids([a.total_reserved for a in args])
        self.says_memory_in_use |= bool((rows["total_allocated"] != MISSING).any())
        self.count_odd("memory_event_without_size", size == 0, events)
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
        if spans:
            self.sink.anomaly("unknown_category", len(spans), f"category {spans[0].cat!r}")
            self._others(kind, spans)
        rest = len(events) - len(spans)
        if rest:
            first = next(event for event in events if event.ph != "X")
            self.sink.anomaly("unsupported_event", rest, f"phase {first.ph!r}, {first.name!r}")

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
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return text


def _valid(rows: Rows, valid: Bools) -> Rows:
    return rows if valid.all() else rows[valid]
