"""Takes events as they come and puts their columns away, kind by kind."""

from __future__ import annotations

import tempfile
from collections import Counter, defaultdict
from collections.abc import Sequence
from types import TracebackType
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from unified_prof.columns import Sink
from unified_prof.decoders.kineto import events as ev
from unified_prof.decoders.kineto import rows as r
from unified_prof.decoders.kineto.chains import CallChains
from unified_prof.decoders.kineto.collectives import (
    Collectives,
    from_annotation,
    is_communication,
)
from unified_prof.decoders.kineto.kinds import Kind, Kinds
from unified_prof.decoders.kineto.numbers import MISSING, Int64s, to_float64, to_int64, us_to_ns
from unified_prof.decoders.kineto.pools import (
    PARAMETERS_OPERATION,
    Geometries,
    Names,
    Signatures,
    Threads,
    parse_json,
)
from unified_prof.decoders.kineto.spool import Rows, Spool

Bools = NDArray[np.bool_]
Args = TypeVar("Args", bound=msgspec.Struct)

_RUN_BYTES = 16 << 20
_SANE_NS = 2**62
_MEMORY_EVENT = "[memory]"
_CPU_DEVICE_TYPE = 0
"""c10::DeviceType::CPU, of allocator events."""


class Collector:
    """The parts of one trace, decoded but not yet joined. A context manager."""

    def __init__(self, sink: Sink, run_bytes: int = _RUN_BYTES) -> None:
        self.sink = sink
        self.names = Names(sink.strings)
        self.threads = Threads(lambda name, count, detail: sink.anomaly(name, count, detail))
        self.signatures = Signatures(sink.strings)
        self.geometries = Geometries()
        self.collectives = Collectives()
        self.chains = CallChains()

        def spool(dtype: np.dtype[Any], key: str = "start") -> Spool:
            return Spool(dtype, key, run_rows=max(1, run_bytes // dtype.itemsize))

        self.host = spool(r.HOST)
        self.frames = spool(r.FRAME)
        self.calls = spool(r.CALL)
        self.gpu = spool(r.GPU_TASK, "correlation")
        self.allocations = spool(r.ALLOCATION)
        self.gpu_annotations = spool(r.GPU_ANNOTATION)
        self.syncs = spool(r.SYNC)
        self.collections = spool(r.COLLECTION)
        self.other = spool(r.OTHER)
        self.new_spool = spool
        self.texts = tempfile.TemporaryFile(prefix="uprof-")  # noqa: SIM115 (closed by __exit__)
        self.counts: dict[str, int] = defaultdict(int)
        """Events by kind."""
        self.span: tuple[int, int] | None = None
        """First start and last end of all events, ns."""
        self.max_correlation = 0
        self.links_to_operations = False
        """Whether `External id` of a device's tasks names an operation. In older traces it
        repeats the correlation id."""
        self.devices: set[int] = set()
        self.places: dict[tuple[Any, Any], int] = {}
        """(pid, tid) of events outside the host's threads."""
        self._activity: Counter[int] = Counter()

        self._kinds = Kinds()
        self._communication: dict[int, bool] = {}
        self._texts_size = 0
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
            Kind.OTHER: self._others,
            Kind.UNKNOWN: self._unknown,
            Kind.LABEL: self._labels,
        }

    def __enter__(self) -> Collector:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for value in vars(self).values():
            if isinstance(value, Spool):
                value.__exit__(kind, error, traceback)
        self.texts.close()

    @property
    def main_process(self) -> int:
        """Id of the process that did most on the host, 0 if none did anything."""
        by_process: Counter[int] = Counter()
        for thread, count in self._activity.items():
            by_process[self.threads.process_ids[thread]] += count
        return by_process.most_common(1)[0][0] if by_process else 0

    def read_text(self, at: int, size: int) -> str | None:
        """Return the arguments of an event of `other`, None where it has none."""
        self.texts.seek(at)
        return self.texts.read(size).decode("utf-8", "replace") if size else None

    def take(self, events: Sequence[ev.Event]) -> None:
        """Put away a slice of events."""
        groups: dict[tuple[ev.Scalar, ev.Scalar], list[ev.Event]] = defaultdict(list)
        for event in events:
            groups[event.ph, event.cat].append(event)
        for key, members in groups.items():
            kind = self._kinds[key]
            self.counts[kind.value] += len(members)
            if take := self._take.get(kind):
                take(kind, members)

    # ---- one method per kind

    def _operations(self, kind: Kind, events: list[ev.Event]) -> None:
        args = self._args(events, ev.OperationArgs)
        rows, valid = self._timed(events, r.HOST)
        names = self._name_ids(events)
        rows["thread"] = self._thread_numbers(events)
        rows["name"] = names
        is_operation = np.full(len(events), kind is Kind.OPERATION)
        if self.names.steps:
            is_operation &= ~np.isin(names, list(self.names.steps))
        rows["is_operation"] = is_operation
        rows["external"] = self._external(args)
        rows["sequence"] = self._ids([a.sequence_number for a in args])
        rows["forward_thread"] = self._ids([a.forward_thread for a in args])
        rows["signature"] = self._signature_numbers(args)
        rows["inputs"] = self._raw_texts([a.concrete_inputs for a in args])
        rows["module"] = self._optional_texts([a.module_hierarchy for a in args])
        rows["stack"] = [self.chains.of_stack(a.call_stack) if a.call_stack else -1 for a in args]
        rows["collective"] = self._host_collectives(events, names, rows["signature"])
        self.host.append(_valid(rows, valid))

    def _host_collectives(
        self, events: list[ev.Event], names: Int64s, signatures: Int64s
    ) -> Int64s:
        """Return the collective that each event tells of; few events do."""
        numbers = np.full(len(events), MISSING)
        for index in np.flatnonzero(np.isin(names, list(self.names.collectives))).tolist():
            name = events[index].name
            if name == PARAMETERS_OPERATION:
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
        rows, valid = self._timed(events, r.FRAME)
        rows["thread"] = self._thread_numbers(events)
        frames = self.chains.frames
        rows["frame"] = [frames[event.name] for event in events]
        self.frames.append(_valid(rows, valid))

    def _calls(self, _: Kind, events: list[ev.Event]) -> None:
        args = self._args(events, ev.CallArgs)
        rows, valid = self._timed(events, r.CALL)
        rows["thread"] = self._thread_numbers(events)
        rows["name"] = self._name_ids(events)
        rows["correlation"] = self._ids([a.correlation for a in args])
        rows["external"] = self._external(args)
        rows["size"] = self._ids([a.size for a in args])
        rows["geometry"] = self._geometry_numbers(args)
        rows["shared_memory"] = self._ids([a.shared_memory for a in args])
        for field in ("operation", "operation_name", "signature", "collective"):
            rows[field] = MISSING
        self._see_correlations(rows)
        self.calls.append(_valid(rows, valid))

    def _gpu_tasks(self, kind: Kind, events: list[ev.Event]) -> None:
        args = self._args(events, ev.GpuArgs)
        rows, valid = self._timed(events, r.GPU_TASK)
        names = self._name_ids(events)
        rows["name"] = names
        rows["kind"] = {Kind.COPY: r.COPY, Kind.SET: r.SET}.get(kind, r.KERNEL)
        if kind is Kind.KERNEL:
            rows["kind"][self._are_communication(names, events)] = r.COMMUNICATION
        rows["device"], rows["stream"] = self._place(events, args)
        rows["context"] = self._ids([a.context for a in args])
        rows["correlation"] = self._ids([a.correlation for a in args])
        rows["external"] = self._external(args)
        rows["geometry"] = self._geometry_numbers(args)
        rows["queued"] = self._ids([a.queued for a in args])
        rows["registers"] = self._ids([a.registers for a in args])
        rows["shared_memory"] = self._ids([a.shared_memory for a in args])
        rows["blocks_per_sm"] = to_float64([a.blocks_per_sm for a in args])
        rows["warps_per_sm"] = to_float64([a.warps_per_sm for a in args])
        rows["occupancy"] = to_float64([a.occupancy for a in args])
        rows["size"] = self._ids([a.size for a in args])
        rows["bandwidth"] = to_float64([a.bandwidth for a in args])
        rows["graph"] = self._ids([a.graph_id for a in args])
        rows["graph_node"] = self._ids([a.graph_node_id for a in args])
        rows["collective"] = [
            MISSING if a.collective is None else self.collectives[bytes(event.args)]
            for a, event in zip(args, events, strict=True)
        ]
        for field in ("connection", "thread", "operation_name", "signature"):
            rows[field] = MISSING
        rows = _valid(rows, valid)
        self._see_correlations(rows)
        self.devices.update(np.unique(rows["device"]).tolist())
        linked = (rows["external"] != MISSING) & (rows["external"] != rows["correlation"])
        self.links_to_operations = self.links_to_operations or bool(linked.any())
        self.gpu.append(rows)

    def _gpu_annotations_of(self, _: Kind, events: list[ev.Event]) -> None:
        args = self._args(events, ev.ExternalIdArgs)
        rows, valid = self._timed(events, r.GPU_ANNOTATION)
        rows["name"] = self._name_ids(events)
        rows["device"], rows["stream"] = self._place(events, args)
        rows["external"] = self._ids([a.external_id for a in args])
        self.gpu_annotations.append(_valid(rows, valid))

    def _syncs_of(self, _: Kind, events: list[ev.Event]) -> None:
        args = self._args(events, ev.SyncArgs)
        rows, valid = self._timed(events, r.SYNC)
        rows["kind"] = self._name_ids(events)
        rows["device"], rows["stream"] = self._place(events, args)
        rows["context"] = self._ids([a.context for a in args])
        rows["correlation"] = self._ids([a.correlation for a in args])
        rows["wait_stream"] = self._ids([a.wait_stream for a in args])
        rows["wait_event"] = self._ids([a.wait_event for a in args])
        rows["wait_record"] = self._ids([a.wait_record for a in args])
        self.syncs.append(_valid(rows, valid))

    def _garbage_collections(self, _: Kind, events: list[ev.Event]) -> None:
        rows, valid = self._timed(events, r.COLLECTION)
        rows["thread"] = self._thread_numbers(events)
        self.collections.append(_valid(rows, valid))

    def _instants(self, _: Kind, events: list[ev.Event]) -> None:
        memory = [event for event in events if event.name == _MEMORY_EVENT]
        if memory:
            self._allocations_of(memory)
        rest = [event for event in events if event.name != _MEMORY_EVENT]
        if rest:
            self._others(Kind.INSTANT, rest)

    def _allocations_of(self, events: list[ev.Event]) -> None:
        args = self._args(events, ev.MemoryArgs)
        rows, valid = self._timed(events, r.ALLOCATION, instant=True)
        rows["thread"] = self._thread_numbers(events)
        device_type = self._ids([a.device_type for a in args])
        device = self._ids([a.device_id for a in args])
        rows["device"] = np.where(device_type == _CPU_DEVICE_TYPE, MISSING, device)
        rows["address"] = self._ids([a.address for a in args])
        size = self._ids([a.size for a in args], missing=0)
        rows["size"] = size
        rows["total_allocated"] = self._ids([a.total_allocated for a in args])
        rows["total_reserved"] = self._ids([a.total_reserved for a in args])
        self._count_invalid("memory_event_without_size", size == 0, events)
        self.devices.update(np.unique(rows["device"][rows["device"] >= 0]).tolist())
        self.allocations.append(rows[valid & (size != 0)])

    def _others(self, kind: Kind, events: list[ev.Event]) -> None:
        rows, valid = self._timed(events, r.OTHER, instant=kind is Kind.INSTANT)
        rows["category"] = [
            self.names["instant" if e.cat is None and kind is Kind.INSTANT else e.cat]
            for e in events
        ]
        rows["name"] = self._name_ids(events)
        places = self.places
        rows["place"] = [places.setdefault((e.pid, e.tid), len(places)) for e in events]
        if kind is Kind.INSTANT:
            rows["end"] = r.NO_END
        for index, event in enumerate(events):
            text = bytes(event.args)
            rows["args_at"][index], rows["args_size"][index] = self._texts_size, len(text)
            self.texts.write(text)
            self._texts_size += len(text)
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

    # ---- columns

    def _timed(
        self, events: list[ev.Event], dtype: np.dtype[Any], *, instant: bool = False
    ) -> tuple[Rows, Bools]:
        """Return new rows with their times, and which of them are valid."""
        rows = np.empty(len(events), dtype=dtype)
        start, valid = us_to_ns([event.ts for event in events])
        valid &= np.abs(start) < _SANE_NS
        self._count_invalid("event_without_time", ~valid, events)
        if instant:
            end = start
        else:
            duration, has_duration = us_to_ns([event.dur for event in events])
            has_duration &= np.abs(duration) < _SANE_NS
            self._count_invalid("event_without_duration", valid & ~has_duration, events)
            negative = has_duration & (duration < 0)
            self._count_invalid("negative_duration", valid & negative, events)
            valid &= has_duration & ~negative
            end = start + np.where(valid, duration, 0)
            rows["end"] = end
        rows["start"] = start
        if valid.any():
            first, last = int(start[valid].min()), int(end[valid].max())
            if self.span is not None:
                first, last = min(first, self.span[0]), max(last, self.span[1])
            self.span = first, last
        return rows, valid

    def _count_invalid(self, name: str, invalid: Bools, events: list[ev.Event]) -> None:
        if invalid.any():
            event = events[int(np.argmax(invalid))]
            detail = f"{event.cat} {event.name!r}, left out"
            self.sink.anomaly(name, int(np.count_nonzero(invalid)), detail)

    def _args(self, events: list[ev.Event], kind: type[Args]) -> list[Args]:
        """Decode the arguments of all events; what cannot be read counts and is as if absent."""
        text = b"[" + b",".join([event.args for event in events]) + b"]"
        try:
            args = msgspec.json.decode(text, type=list[kind])  # type: ignore[valid-type]
            if len(args) == len(events):
                return args  # type: ignore[no-any-return]
        except (msgspec.MsgspecError, UnicodeDecodeError):
            pass
        decoder = msgspec.json.Decoder(kind)
        return [self._args_of(event, decoder, kind) for event in events]

    def _args_of(self, event: ev.Event, decoder: Any, kind: type[Args]) -> Args:
        text = bytes(event.args)
        if not text or text == b"null":
            return kind()
        try:
            return decoder.decode(text)  # type: ignore[no-any-return]
        except (msgspec.MsgspecError, UnicodeDecodeError):
            self.sink.anomaly("malformed_args", 1, repr(text[:120]))
            return kind()

    def _ids(self, values: list[Any], missing: int = MISSING) -> Int64s:
        column, bad = to_int64(values, missing)
        if bad:
            self.sink.anomaly("unreadable_number", bad, "an id or count of an event's arguments")
        return column

    def _external(self, args: Sequence[Any]) -> Int64s:
        column = self._ids([a.external_id for a in args])
        if (column == MISSING).any():  # before torch 1.11 the key began in lower case
            old = self._ids([a.old_external_id for a in args])
            column = np.where(column == MISSING, old, column)
        return column

    def _name_ids(self, events: list[ev.Event]) -> Int64s:
        names = self.names
        return np.array([names[event.name] for event in events], dtype=np.int64)

    def _thread_numbers(self, events: list[ev.Event]) -> Int64s:
        threads = self.threads
        numbers = np.array([threads[event.pid, event.tid] for event in events], dtype=np.int64)
        self._activity.update(dict(enumerate(np.bincount(numbers).tolist())))
        return numbers

    def _place(self, events: list[ev.Event], args: Sequence[Any]) -> tuple[Int64s, Int64s]:
        """Return device and stream; where the arguments lack them they are the pid and tid."""
        device, stream = [], []
        for event, a in zip(events, args, strict=True):
            device.append(event.pid if a.device is None else a.device)
            stream.append(event.tid if a.stream is None else a.stream)
        return self._ids(device), self._ids(stream)

    def _signature_numbers(self, args: list[ev.OperationArgs]) -> list[int]:
        signatures, absent = self.signatures, ev.ABSENT
        return [
            MISSING
            if a.input_dims is absent and a.input_types is absent and a.old_input_dims is absent
            else signatures[
                bytes(a.input_types),
                bytes(a.input_dims) or bytes(a.old_input_dims),
                bytes(a.input_strides),
            ]
            for a in args
        ]

    def _geometry_numbers(self, args: Sequence[Any]) -> list[int]:
        geometries, absent = self.geometries, ev.ABSENT
        return [
            MISSING if a.grid is absent else geometries[bytes(a.grid), bytes(a.block)] for a in args
        ]

    def _raw_texts(self, raw: list[msgspec.Raw]) -> list[int]:
        intern, absent = self.sink.strings.intern, ev.ABSENT
        return [MISSING if t is absent else intern(bytes(t).decode("utf-8")) for t in raw]

    def _optional_texts(self, texts: list[Any]) -> list[int]:
        names = self.names
        return [names[text] if text else MISSING for text in texts]

    def _are_communication(self, names: Int64s, events: list[ev.Event]) -> Bools:
        known = self._communication
        for number, event in zip(names.tolist(), events, strict=True):
            if number not in known:
                known[number] = is_communication(str(event.name))
        return np.array([known[number] for number in names.tolist()], dtype=bool)

    def _see_correlations(self, rows: Rows) -> None:
        if len(rows):
            self.max_correlation = max(self.max_correlation, int(rows["correlation"].max()))


def _valid(rows: Rows, valid: Bools) -> Rows:
    return rows if valid.all() else rows[valid]
