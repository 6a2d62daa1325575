"""What is decoded of each event, as types: the common part first, `args` by kind of event.

Field order follows the order in which Kineto writes the keys, because msgspec looks for a key
from where the last one was found. Every value that some version or some damaged trace writes in
another type is `Any` here and is converted, counted where unreadable, a column at a time.
"""

from __future__ import annotations

from typing import Any

import msgspec

from unified_prof.decoders.gpu.numbers import MISSING

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
