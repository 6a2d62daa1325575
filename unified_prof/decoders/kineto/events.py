"""What is decoded of each event, as types: the common part first, `args` by kind of event.

Field order follows the order in which Kineto writes the keys, because msgspec looks for a key
from where the last one was found. Every value that some version or some damaged trace writes in
another type is `Any` here and is converted, counted where unreadable, a column at a time.

Which kind of event a phase and category mean, over all versions of Kineto.

Slices of a trace decoded at once: events of known categories straight to their arguments' types.

`args` otherwise stay text until the kind is known and are decoded again, which takes a third of the
time of reading. Where a slice holds anything else (a category without a type here, another phase,
arguments of another shape, parameters of a collective, which are kept as text), it is decoded the
general way: what comes out is the same.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Literal, Union

import msgspec

from unified_prof.decoders.gpu.memory import MISSING

Scalar = str | int | float | bool | None

ABSENT = msgspec.Raw(b"")
"""Stands for a value the event does not have, where values stay JSON text."""


class Event(msgspec.Struct, gc=False):
    """One event of any kind; `args` stays JSON text until the kind is known."""

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
    """What `record_param_comms` says of a collective; newer kernels carry it themselves."""

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
    """Arguments of a CUDA or HIP runtime or driver call; HIP also says what was launched."""

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
    """Arguments of a synchronisation on the device's side."""

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
    """Arguments of an allocator event: positive bytes allocate, negative free."""

    total_reserved: Any = msgspec.field(default=None, name="Total Reserved")
    total_allocated: Any = msgspec.field(default=None, name="Total Allocated")
    size: Any = msgspec.field(default=None, name="Bytes")
    device_id: Any = msgspec.field(default=MISSING, name="Device Id")
    device_type: Any = msgspec.field(default=MISSING, name="Device Type")
    address: Any = msgspec.field(default=MISSING, name="Addr")


class ExternalIdArgs(msgspec.Struct, gc=False):
    """Arguments of an annotation on the device's side."""

    external_id: Any = msgspec.field(default=MISSING, name="External id")
    device: Any = None
    stream: Any = None


class Kind(Enum):
    """Kinds of events that are treated alike; the values name them in provenance."""

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


# Categories of complete events ("ph": "X"), in lower case: torch before 1.12 capitalised them
# and had shorter names.
CATEGORIES: dict[str, Kind] = {
    "cpu_op": Kind.OPERATION,
    "operator": Kind.OPERATION,
    "user_annotation": Kind.ANNOTATION,
    "nvtx": Kind.ANNOTATION,
    "python_function": Kind.FRAME,
    "cuda_runtime": Kind.CALL,
    "cuda_driver": Kind.CALL,
    "hip_runtime": Kind.CALL,
    "runtime": Kind.CALL,
    "xpu_runtime": Kind.CALL,
    "xpu_driver": Kind.CALL,
    "mtia_runtime": Kind.CALL,
    "privateuse1_runtime": Kind.CALL,
    "privateuse1_driver": Kind.CALL,
    "kernel": Kind.KERNEL,
    "gpu_memcpy": Kind.COPY,
    "memcpy": Kind.COPY,
    "gpu_memset": Kind.SET,
    "memset": Kind.SET,
    "gpu_user_annotation": Kind.GPU_ANNOTATION,
    "cuda_sync": Kind.SYNC,
    "python_gc": Kind.GARBAGE_COLLECTION,
    "overhead": Kind.OTHER,
    "trace": Kind.OTHER,
    "cuda_profiler_range": Kind.OTHER,
    "cuda_event": Kind.OTHER,
    "collective_comm": Kind.OTHER,
    "gpu_pm_counter": Kind.OTHER,
    "glow_runtime": Kind.OTHER,
    "hpu_op": Kind.OTHER,
    "mtia_ccp_events": Kind.OTHER,
    "mtia_insight": Kind.OTHER,
    "mtia_workloadd": Kind.OTHER,
    "external_correlation": Kind.OTHER,
}

_PHASES: dict[str, Kind] = {
    "i": Kind.INSTANT,
    "I": Kind.INSTANT,
    "M": Kind.LABEL,
    "s": Kind.FLOW,
    "t": Kind.FLOW,
    "f": Kind.FLOW,
}


class Kinds(dict[tuple[Any, Any], Kind]):
    """(phase, category) -> kind, worked out once for each pair."""

    def __missing__(self, key: tuple[Any, Any]) -> Kind:
        phase, category = key
        if phase == "X":
            kind = CATEGORIES.get(str(category).lower(), Kind.UNKNOWN)
        else:
            kind = _PHASES.get(phase, Kind.UNKNOWN)
        self[key] = kind
        return kind


_MOST_SKIPPED = 64

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
# Flows from a forward operation to its backward node.
FORWARD_FLOW = "fwdbwd"

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
    whole: _Fields = [("ph", Literal["X"])]
    made = [_struct(one, [*whole, *_PLACE, *_TIMES]) for one in _WITHOUT_ARGUMENTS]
    for args, categories in _COMPLETE.items():
        given = ("args", args, msgspec.field(default_factory=args))
        made += [_struct(one, [*whole, *_PLACE, *_TIMES, given]) for one in categories]
    made.append(
        _struct(
            "cpu_instant_event",
            [("ph", Literal["i"]), *_PLACE, *_TIMES, ("args", msgspec.Raw, ABSENT)],
        )
    )
    ends: _Fields = [("ph", Literal["s", "t", "f"])]
    forward: _Fields = [*ends, *_PLACE, ("ts", msgspec.Raw, ABSENT), ("id", msgspec.Raw, ABSENT)]
    made.append(_struct(FORWARD_FLOW, forward))
    return made + [_struct(one, ends) for one in _FLOWS]


_decode = msgspec.json.Decoder(list[Union[tuple(_structs())]]).decode  # type: ignore[misc]  # noqa: UP007


class KnownSlices:
    """Decodes slices of known events; tries less often in traces that have few of them."""

    def __init__(self) -> None:
        self.decoded = 0
        """Slices that were."""
        self._failures = 0
        self._skip = 0

    def decode(self, text: memoryview) -> list[Event] | None:
        """Return the events of a JSON list, None where that has to be done the general way."""
        if self._skip:
            self._skip -= 1
            return None
        try:
            events: list[Event] = _decode(text)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            self._skip = min(self._failures, _MOST_SKIPPED)
            self._failures = 2 * self._failures + 1
            return None
        self._failures = 0
        self.decoded += 1
        return events
