"""Types of trace events, their arguments, and their kinds by phase and category.

Fields are in the order in which Kineto writes the keys, because msgspec starts to search for a key
at the position of the previous one. Values that some versions or damaged traces write with another
type have the type `Any` here and are converted later, column by column; unreadable values are
counted.

Slices that contain only known events are decoded in one pass, directly to the argument types,
because decoding `args` separately would take a third of the reading time. Other slices (with an
unknown category or phase, unexpected arguments, or parameters of a collective, which are kept as
JSON) are decoded in two passes with the same result.

Begin and end events are joined into complete events. `B` and `E` nest on a thread: an end closes
the last open begin on its thread. `b` and `e` (older: `S` and `F`) are asynchronous and are joined
by category and id, across threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Literal, Union

import msgspec
from msgspec.structs import replace

from unified_prof.base.columns import MISSING
from unified_prof.base.redaction import redact
from unified_prof.base.text import NS_PER_US, us_text_to_ns
from unified_prof.decoders.gpu.pools import parse_json

Scalar = str | int | float | bool | None

# Stands for a missing value in fields that stay JSON text.
ABSENT = msgspec.Raw(b"")
_SAMPLE_BYTES, _SAMPLE_LENGTH = 2_000, 120


def sample(text: bytes) -> str:
    """Return the beginning of a damaged event as text for an anomaly, without secrets."""
    # Masked before it is shortened: half a secret is not recognized as one.
    return repr(redact(text[:_SAMPLE_BYTES].decode(errors="replace"))[:_SAMPLE_LENGTH])


class Event(msgspec.Struct, gc=False):
    """One event of any kind; `args` is kept as JSON until the kind is known."""

    ph: Scalar = None
    cat: Scalar = None
    name: Scalar = ""
    pid: Scalar = None
    tid: Scalar = None
    ts: msgspec.Raw = ABSENT
    dur: msgspec.Raw = ABSENT
    args: msgspec.Raw = ABSENT
    id: msgspec.Raw = ABSENT


class OperationArgs(msgspec.Struct, gc=False):
    """Arguments of a framework operation or user annotation."""

    external_id: Any = msgspec.field(default=MISSING, name="External id")
    sequence_number: Any = msgspec.field(default=MISSING, name="Sequence number")
    forward_thread: Any = msgspec.field(default=MISSING, name="Fwd thread id")
    concrete_inputs: msgspec.Raw = msgspec.field(default=ABSENT, name="Concrete Inputs")
    input_types: msgspec.Raw = msgspec.field(default=ABSENT, name="Input type")
    input_strides: msgspec.Raw = msgspec.field(default=ABSENT, name="Input Strides")
    input_dims: msgspec.Raw = msgspec.field(default=ABSENT, name="Input Dims")
    finished: Any = True
    call_stack: Any = msgspec.field(default="", name="Call stack")
    module_hierarchy: Any = msgspec.field(default="", name="Module Hierarchy")
    old_external_id: Any = msgspec.field(default=MISSING, name="external id")
    old_input_dims: msgspec.Raw = msgspec.field(default=ABSENT, name="Input dims")


class CollectiveArgs(msgspec.Struct, gc=False):
    """Parameters of a collective from `record_param_comms`; newer kernels contain them, too."""

    collective: Any = msgspec.field(default=None, name="Collective name")
    in_elements: Any = msgspec.field(default=MISSING, name="In msg nelems")
    out_elements: Any = msgspec.field(default=MISSING, name="Out msg nelems")
    group_size: Any = msgspec.field(default=MISSING, name="Group size")
    dtype: Any = None
    in_split: Any = msgspec.field(default=None, name="In split size")
    out_split: Any = msgspec.field(default=None, name="Out split size")
    group_name: Any = msgspec.field(default=None, name="Process Group Name")
    group_description: Any = msgspec.field(default=None, name="Process Group Description")
    group_ranks: Any = msgspec.field(default=None, name="Process Group Ranks")
    source_rank: Any = msgspec.field(default=None, name="Src Rank")
    target_rank: Any = msgspec.field(default=None, name="Dst Rank")
    sequence: Any = msgspec.field(default=MISSING, name="Seq")
    rank: Any = msgspec.field(default=MISSING, name="Rank")
    rank_start: Any = msgspec.field(default=MISSING, name="Global rank start")
    rank_stride: Any = msgspec.field(default=MISSING, name="Global rank stride")


class CallArgs(msgspec.Struct, gc=False):
    """Arguments of a CUDA or HIP runtime or driver call; HIP also records launch arguments."""

    external_id: Any = msgspec.field(default=MISSING, name="External id")
    cbid: Any = None
    correlation: Any = MISSING
    grid: msgspec.Raw = ABSENT
    block: msgspec.Raw = ABSENT
    shared_memory: Any = msgspec.field(default=MISSING, name="shared memory")
    size: Any = MISSING
    old_external_id: Any = msgspec.field(default=MISSING, name="external id")


class GpuArgs(msgspec.Struct, gc=False):
    """Arguments of a kernel, copy or memory set."""

    external_id: Any = msgspec.field(default=MISSING, name="External id")
    queued: Any = MISSING
    device: Any = None
    context: Any = MISSING
    stream: Any = None
    correlation: Any = MISSING
    registers: Any = msgspec.field(default=MISSING, name="registers per thread")
    shared_memory: Any = msgspec.field(default=MISSING, name="shared memory")
    blocks_per_sm: Any = msgspec.field(default=None, name="blocks per SM")
    warps_per_sm: Any = msgspec.field(default=None, name="warps per SM")
    grid: msgspec.Raw = ABSENT
    block: msgspec.Raw = ABSENT
    occupancy: Any = msgspec.field(default=None, name="est. achieved occupancy %")
    size: Any = msgspec.field(default=MISSING, name="bytes")
    bandwidth: Any = msgspec.field(default=None, name="memory bandwidth (GB/s)")
    graph_id: Any = msgspec.field(default=MISSING, name="graph id")
    graph_node_id: Any = msgspec.field(default=MISSING, name="graph node id")
    collective: Any = msgspec.field(default=None, name="Collective name")
    old_external_id: Any = msgspec.field(default=MISSING, name="external id")


class SyncArgs(msgspec.Struct, gc=False):
    """Arguments of a device-side synchronization."""

    external_id: Any = msgspec.field(default=MISSING, name="External id")
    kind: Any = msgspec.field(default=None, name="cuda_sync_kind")
    wait_stream: Any = msgspec.field(default=MISSING, name="wait_on_stream")
    wait_record: Any = msgspec.field(default=MISSING, name="wait_on_cuda_event_record_corr_id")
    wait_event: Any = msgspec.field(default=MISSING, name="wait_on_cuda_event_id")
    stream: Any = None
    correlation: Any = MISSING
    device: Any = None
    context: Any = MISSING


class MemoryArgs(msgspec.Struct, gc=False):
    """Arguments of an allocator event; `bytes` is positive for allocations, negative for frees."""

    total_reserved: Any = msgspec.field(default=None, name="Total Reserved")
    total_allocated: Any = msgspec.field(default=None, name="Total Allocated")
    size: Any = msgspec.field(default=None, name="Bytes")
    device_id: Any = msgspec.field(default=MISSING, name="Device Id")
    device_type: Any = msgspec.field(default=MISSING, name="Device Type")
    address: Any = msgspec.field(default=MISSING, name="Addr")


class ExternalIdArgs(msgspec.Struct, gc=False):
    """Arguments of a device-side annotation."""

    external_id: Any = msgspec.field(default=MISSING, name="External id")
    device: Any = None
    stream: Any = None


class Kind(Enum):
    """Kinds of events; the values are names in UPROF_RUN."""

    OPERATION = "operation"
    ANNOTATION = "annotation"
    FRAME = "python_function"
    CALL = "runtime_call"
    KERNEL = "kernel"
    COPY = "copy"
    SET = "memory_set"
    GPU_ANNOTATION = "gpu_annotation"
    SYNC = "synchronization"
    GARBAGE_COLLECTION = "garbage_collection"
    INSTANT = "instant"
    LABEL = "label"
    FLOW = "flow"
    OTHER = "other"
    UNKNOWN = "unknown"


# Categories of complete events ("ph": "X"), in lower case: torch before 1.12 capitalized them
# and used shorter names. `*` is any device, as in `privateuse1_runtime`. Kernels include all that
# torch itself counts as time of a device.
CATEGORIES: dict[str, Kind] = {
    category: kind
    for kind, categories in {
        Kind.OPERATION: "cpu_op operator",
        Kind.ANNOTATION: "user_annotation nvtx",
        Kind.FRAME: "python_function",
        Kind.CALL: "*_runtime *_driver runtime",
        Kind.KERNEL: "kernel *_kernel hpu_op mtia_ccp_events mtia_workloadd",
        Kind.COPY: "*_memcpy memcpy",
        Kind.SET: "*_memset memset",
        Kind.GPU_ANNOTATION: "*_user_annotation",
        Kind.SYNC: "*_sync",
        Kind.GARBAGE_COLLECTION: "python_gc",
        Kind.OTHER: "overhead trace cuda_profiler_range cuda_event collective_comm gpu_pm_counter"
        " glow_runtime mtia_insight external_correlation",
    }.items()
    for category in categories.split()
}


def _kind_of(category: str) -> Kind:
    of_any_device = f"*_{category.partition('_')[2]}"
    return CATEGORIES.get(category) or CATEGORIES.get(of_any_device, Kind.UNKNOWN)


_PHASES: dict[str, Kind] = {
    **dict.fromkeys("iI", Kind.INSTANT),
    "M": Kind.LABEL,
    **dict.fromkeys("stf", Kind.FLOW),
}


class Kinds(dict[tuple[Any, Any], Kind]):
    """Maps (phase, category) to the kind, which is determined once for each pair."""

    def __missing__(self, key: tuple[Any, Any]) -> Kind:
        phase, category = key
        other = _PHASES.get(phase, Kind.UNKNOWN)
        return self.setdefault(key, _kind_of(str(category).lower()) if phase == "X" else other)


# Maximum slices that are not tried in one pass after failures.
_MAX_SKIPPED = 64
_NO_COLLECTIVE: Any = msgspec.field(default=None, name="Collective name")


class _OperationArgs(OperationArgs, gc=False):
    collective: None = _NO_COLLECTIVE


class _GpuArgs(GpuArgs, gc=False):
    collective: None = _NO_COLLECTIVE


_COMPLETE: dict[type[msgspec.Struct], tuple[str, ...]] = {
    _OperationArgs: ("cpu_op", "user_annotation"),
    CallArgs: ("cuda_runtime", "cuda_driver", "hip_runtime"),
    _GpuArgs: ("kernel", "gpu_memcpy", "gpu_memset"),
    SyncArgs: ("cuda_sync",),
    ExternalIdArgs: ("gpu_user_annotation",),
}
_WITHOUT_ARGUMENTS = ("python_function", "python_gc")
_FLOWS = ("ac2g", "async")
FORWARD_FLOW = "fwdbwd"  # Flows from a forward operation to its backward node.
# Name of garbage collections: Python functions of torch 2.13, annotations of `uprof watch`.
COLLECTION_NAME = "Python GC"
_Fields = list[Any]
_PLACE: _Fields = [("name", Scalar, ""), ("pid", Scalar, None), ("tid", Scalar, None)]
_TIMES: _Fields = [("ts", msgspec.Raw, ABSENT), ("dur", msgspec.Raw, ABSENT)]


def _struct(category: str, fields: _Fields) -> Any:
    return msgspec.defstruct(
        f"Known_{category}",
        fields,
        namespace={"cat": category},
        tag_field="cat",
        tag=category,
        gc=False,
    )


def _structs() -> list[Any]:
    complete: _Fields = [("ph", Literal["X"])]
    structs = [_struct(name, [*complete, *_PLACE, *_TIMES]) for name in _WITHOUT_ARGUMENTS]
    for args, categories in _COMPLETE.items():
        field = ("args", args, msgspec.field(default_factory=args))
        structs += [_struct(name, [*complete, *_PLACE, *_TIMES, field]) for name in categories]
    instant = [("ph", Literal["i"]), *_PLACE, *_TIMES, ("args", msgspec.Raw, ABSENT)]
    structs.append(_struct("cpu_instant_event", instant))
    ends: _Fields = [("ph", Literal["s", "t", "f"])]
    forward: _Fields = [*ends, *_PLACE, ("ts", msgspec.Raw, ABSENT), ("id", msgspec.Raw, ABSENT)]
    structs.append(_struct(FORWARD_FLOW, forward))
    return structs + [_struct(name, ends) for name in _FLOWS]


_decode = msgspec.json.Decoder(list[Union[tuple(_structs())]]).decode  # type: ignore[misc]  # noqa: UP007


class KnownSlices:
    """Decodes slices of known events in one pass; after failures, it is tried less often."""

    def __init__(self) -> None:
        self.decoded = 0  # Number of slices decoded in one pass.
        self._failures = 0
        self._skip = 0

    def decode(self, text: memoryview) -> list[Event] | None:
        """Decode a JSON list of events; return None if it must be decoded in two passes."""
        if self._skip:
            self._skip -= 1
            return None
        try:
            events: list[Event] = _decode(text)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            self._skip = min(self._failures, _MAX_SKIPPED)
            self._failures = 2 * self._failures + 1
            return None
        self._failures = 0
        self.decoded += 1
        return events


# Maximum number of open beginnings, which bounds the memory they take; more are skipped.
MAX_OPEN = 1 << 17
_NESTED_BEGIN, _NESTED_END = "B", "E"
_BEGINS = (_NESTED_BEGIN, "b", "S")
PHASES = frozenset((*_BEGINS, _NESTED_END, "e", "F"))
_ASYNCHRONOUS = "async"
_UNFINISHED = msgspec.Raw(b'{"finished": false}')

# Complete events: nested events and asynchronous events.
_Complete = tuple[list[Event], list[Event]]


class Phases:
    """Begin events that have no end yet."""

    def __init__(self, anomaly: Callable[[str, int, str], None]) -> None:
        self._anomaly = anomaly
        self._begun: dict[tuple[Any, ...], list[Event]] = {}
        self._open = 0
        self.skipped = 0

    def complete(self, events: Sequence[Event]) -> _Complete:
        """Add begin and end events in file order; return those now complete (see `_Complete`)."""
        done: _Complete = ([], [])
        for event in events:
            key = _key(event)
            if event.ph in _BEGINS:
                if self._open < MAX_OPEN:
                    self._open += 1
                    # A copy does not keep the decoded slice in memory.
                    texts = {name: getattr(event, name).copy() for name in ("ts", "args", "id")}
                    self._begun.setdefault(key, []).append(replace(event, **texts))
                else:
                    self.skipped += 1
                    self._anomaly("too_many_open_events", 1, f"{event.name!r}, skipped")
            elif begun := self._begun.get(key):
                self._open -= 1
                done[event.ph != _NESTED_END].append(_complete_event(begun.pop(), event))
                if not begun:
                    del self._begun[key]
            else:
                self.skipped += 1
                self._anomaly("end_without_begin", 1, f"{event.name!r}, skipped")
        return done

    def rest(self, last_ns: int) -> _Complete:
        """Return events without an end as unfinished, extended to the end of the recording."""
        end = Event(ts=msgspec.Raw(_us(last_ns)), args=_UNFINISHED)
        done: _Complete = ([], [])
        for begun in self._begun.values():
            for event in begun:
                done[event.ph != _NESTED_BEGIN].append(_complete_event(event, end))
        self._begun, self._open = {}, 0
        if unfinished := [*done[0], *done[1]]:
            detail = f"{unfinished[0].name!r}, extended to the end of the recording"
            self._anomaly("begin_without_end", len(unfinished), detail)
        return done


def _key(event: Event) -> tuple[Any, ...]:
    """Return the key that a begin event and its end have in common."""
    if event.ph in (_NESTED_BEGIN, _NESTED_END):
        return event.pid, event.tid
    kind = event.ph in ("b", "e")
    return kind, event.cat, bytes(event.id), event.pid if event.id is ABSENT else None


def _complete_event(begin: Event, end: Event) -> Event:
    is_named = begin.ph == _NESTED_BEGIN or begin.cat is not None
    return replace(
        begin,
        ph="X",
        cat=begin.cat if is_named else _ASYNCHRONOUS,
        dur=_duration(begin.ts, end.ts),
        args=_merged_arguments(begin.args, end.args),
        id=ABSENT,
    )


def _duration(begin: msgspec.Raw, end: msgspec.Raw) -> msgspec.Raw:
    try:
        first, last = (us_text_to_ns(bytes(time).strip(b'" ').decode()) for time in (begin, end))
    except ValueError:
        return ABSENT
    return msgspec.Raw(_us(last - first))


def _us(ns: int) -> bytes:
    microseconds, rest = divmod(abs(ns), NS_PER_US)
    return f"{'-' if ns < 0 else ''}{microseconds}.{rest:03}".encode()


def _merged_arguments(begin: msgspec.Raw, end: msgspec.Raw) -> msgspec.Raw:
    """Merge the arguments of begin and end; values of the end take precedence."""
    values = [parse_json(bytes(text)) for text in (begin, end)]
    mappings = [value for value in values if isinstance(value, dict)]
    if len(mappings) < 2:
        return end if values[0] is None and values[1] is not None else begin
    return msgspec.Raw(msgspec.json.encode(mappings[0] | mappings[1]))
