"""Special values in msprof databases: placeholders for missing values, and enum numbers.

Their meaning was derived from the exporter's output; `docs/schema/msprof.md` describes the columns.
"Exporter" and "uprof" name the writer of a value. Released migrations contain copies of the values.
"""

from __future__ import annotations

from functools import lru_cache

# Unknown text, for names, tensors and attributes. Exporter; stored as a text in STRING_IDS.
NOT_AVAILABLE = "N/A"

# Missing value of 32-bit columns. Exporter, with the following meanings.
NO_NUMBER = 0xFFFFFFFF

# TASK.contextId: not a context of an FFTS+ task.
NO_CONTEXT = NO_NUMBER

# TASK.modelId: the launch was outside a MODEL call, and its stream was not captured.
NO_MODEL = NO_NUMBER

# TASK.taskId of device work from other profilers, which have no such number. uprof.
NO_TASK = NO_NUMBER

# COMMUNICATION_TASK_INFO.srcRank, dstRank and planeId: no transfer or no peer. Also
# COMMUNICATION_OP.rankSize of collectives on AI CPUs: not recorded.
NO_RANK = NO_NUMBER

# MSTX_EVENTS.category and rangeId: the mark has none.
NO_CATEGORY = NO_NUMBER

# Column with an id of STRING_IDS: no text. Exporter, and torch_npu's empty text.
NO_TEXT = NO_NUMBER

# TASK.connectionId: the launching host call is unknown. Current exporter.
NO_CONNECTION = -1

# The same before 2025-02-18; before 2024-10-31 also for host-only marks.
OLD_NO_CONNECTION = NO_NUMBER

# MSTX_EVENTS.connectionId: the mark has no device part. Current exporter; readers take it for a
# connection shared by all such marks, because they exclude only `NO_MARK_CONNECTION`.
HOST_ONLY_CONNECTION = 4_000_000_000

# The same for marks of other profilers. uprof, as readers of the format expect it.
NO_MARK_CONNECTION = NO_NUMBER

# MSTX_EVENTS.connectionId and TASK.connectionId of mark 0; the others follow.
FIRST_MARK_CONNECTION = 4_000_000_001

# MSTX_EVENTS.domainId of all marks in exporters of four days in February 2025.
OLD_NO_DOMAIN = 65535

# All HCCL enums: unknown. Exporter since 2024-07-11.
TYPE_NOT_AVAILABLE = 65534

# All HCCL enums: a type without number. Exporter.
TYPE_INVALID = 65535

# ENUM_MEMCPY_OPERATION: another direction. Exporter.
COPY_OTHER = 65535

# TASK.streamId if device records have no stream and the launch is unknown. Stream ids have 16 bits
# and never this value. Exporter, in its 16-bit field.
NO_STREAM = 0xFFFF

# COMPUTE_TASK_INFO.taskType of kernels of other devices: viewers look for compute here. uprof; the
# type of the task itself is in TASK.taskType.
KERNEL_CORE = "AI_CORE"

# ENUM_API_TYPE of PYTORCH_API: operator, entry of torch_npu's queue, Python call, user mark.
# Written only by torch_npu.
API_OPERATION, API_QUEUE, API_PYTHON, API_MARK = 50001, 50002, 50003, 50004

# Their names in ENUM_API_TYPE.
API_NAMES = {API_OPERATION: "op", API_QUEUE: "queue", API_PYTHON: "trace", API_MARK: "mstx"}


@lru_cache(maxsize=4096)  # ranks of one run name the same groups
def group_hash(group: str) -> int:
    """Return the number that msprof writes for a communication group (two 32-bit hashes).

    Used in `analysis.db`, and in COMMUNICATION_OP.groupName if the name was not recorded.
    """
    high = low = 0
    for char in group:
        high = (high * 29 + ord(char)) % 2**32
        low = (low * 131 + ord(char)) % 2**32
    return high << 32 | low
