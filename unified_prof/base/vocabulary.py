"""Values of the msprof database that stand for something else than themselves.

Exporters write them where there is no value, or where the kind of a row is said by its number.
What they mean is told by the exporter's behaviour on recordings (`docs/schema/msprof.md` has the
columns); each one says whose value it is. Released migrations spell their own.
"""

from __future__ import annotations

from functools import lru_cache

NOT_AVAILABLE = "N/A"
"""A text that is not known: names, tensors, attributes. The exporter's, kept as a text like any."""

NO_NUMBER = 0xFFFFFFFF
"""None in a column of 32-bit numbers: the largest. The exporter's, in the meanings that follow."""

NO_CONTEXT = NO_NUMBER
"""TASK.contextId: the task is not divided, it is no context of an FFTS+ task."""

NO_MODEL = NO_NUMBER
"""TASK.modelId: no MODEL call was around the launch, and its stream was not captured."""

NO_TASK = NO_NUMBER
"""TASK.taskId of other profilers' device work, which has no such number. Ours."""

NO_RANK = NO_NUMBER
"""COMMUNICATION_TASK_INFO.srcRank, dstRank and planeId: nothing was sent, or to nobody.
Also COMMUNICATION_OP.rankSize of what AI CPUs ran: not recorded."""

NO_CATEGORY = NO_NUMBER
"""MSTX_EVENTS.category and rangeId: mstx has no category, and nothing a range."""

NO_TEXT = NO_NUMBER
"""Where an id of STRING_IDS is asked for: no text. Exporters'; torch_npu's empty text."""

NO_CONNECTION = -1
"""TASK.connectionId: the host call that launched it is not known. The exporter's of today."""

OLD_NO_CONNECTION = NO_NUMBER
"""The same before 2025-02-18; and, before 2024-10-31, of marks that are on the host only."""

HOST_ONLY_CONNECTION = 4_000_000_000
"""MSTX_EVENTS.connectionId: the mark has no half on the device. The exporter's of today, which
readers take for a connection that all such marks share: they leave out `NO_MARK_CONNECTION` alone.
"""

NO_MARK_CONNECTION = NO_NUMBER
"""The same of other profilers' marks. Ours, as readers of the format understand it."""

FIRST_MARK_CONNECTION = 4_000_000_001
"""MSTX_EVENTS.connectionId and TASK.connectionId: mark 0, the others follow by their number."""

OLD_NO_DOMAIN = 65535
"""MSTX_EVENTS.domainId of all marks in the exporters of four days in February 2025."""

TYPE_NOT_AVAILABLE = 65534
"""In every HCCL enum: not known. The exporter's since 2024-07-11."""

TYPE_INVALID = 65535
"""In every HCCL enum: a type that has no number. The exporter's."""

COPY_OTHER = 65535
"""ENUM_MEMCPY_OPERATION: none of the known directions. The exporter's."""

NO_STREAM = 0xFFFF
"""TASK.streamId on chips whose device records carry no stream: nobody launched the task. Streams
have 16 bits, and none this number. The exporter's, in a 16-bit field of its own."""

KERNEL_CORE = "AI_CORE"
"""COMPUTE_TASK_INFO.taskType of other devices' kernels: where viewers look for what computed. Ours;
what the task itself was is in TASK.taskType."""

API_OPERATION, API_QUEUE, API_PYTHON, API_MARK = 50001, 50002, 50003, 50004
"""ENUM_API_TYPE of PYTORCH_API: an operator, its way through torch_npu's queue, a Python call, a
mark of the user. Only torch_npu adds them."""

API_NAMES = {API_OPERATION: "op", API_QUEUE: "queue", API_PYTHON: "trace", API_MARK: "mstx"}
"""What torch_npu calls them in ENUM_API_TYPE."""


@lru_cache(maxsize=4096)  # ranks of one run name the same groups
def group_hash(group: str) -> int:
    """Return the number that msprof writes for a communication group: two 32-bit hashes in a row.

    It stands in `analysis.db`, and in COMMUNICATION_OP.groupName where the name was not recorded.
    """
    high = low = 0
    for char in group:
        high = (high * 29 + ord(char)) % 2**32
        low = (low * 131 + ord(char)) % 2**32
    return high << 32 | low
