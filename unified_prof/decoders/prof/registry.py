"""The decoders of files that need nothing but their own part of a recording.

One row a decoder: the module, and the files (by `DataFolder` name) any of which makes it worth
importing. What needs several parts at once - calls, tasks, operators, communication, PMU of
tasks - is put together by `recording`.
"""

from __future__ import annotations

DEVICE_DECODERS: tuple[tuple[str, tuple[str, ...]], ...] = ()
HOST_DECODERS: tuple[tuple[str, tuple[str, ...]], ...] = ()
