"""The decoders of files that need nothing but their own part of a recording.

One row a decoder: the module, and the files (by `DataFolder` name) any of which makes it worth
importing. What needs several parts at once - calls, tasks, operators, communication, PMU of
tasks - is put together by `recording`, `host_side` and `device_side`.
"""

from __future__ import annotations

Decoders = tuple[tuple[str, tuple[str, ...]], ...]

DEVICE_DECODERS: Decoders = (("frequency", ()),)

# decode(device, tasks, sink): after the tasks of the device are known.
TASK_DECODERS: Decoders = ()

# decode(host, sink)
HOST_DECODERS: Decoders = (
    (
        "operator_memory",
        ("unaging.additional.task_memory_info", "aging.additional.task_memory_info"),
    ),
)
