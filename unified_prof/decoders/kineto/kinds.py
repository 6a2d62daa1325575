"""Which kind of event a phase and category mean, over all versions of Kineto."""

from __future__ import annotations

from enum import Enum
from typing import Any


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
