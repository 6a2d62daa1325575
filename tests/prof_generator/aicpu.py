"""Recordings of collectives run by AI CPU kernels, with kernels and tasks placed in ticks.

The host launches a kernel in a separate call or in one inside a collective of the host; tasks are
in the device's log only. Records of the AI CPUs about either are added separately, so that a test
can omit them or make them contradictory.
"""

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from tests.prof_generator.encode import (
    Names,
    Records,
    concatenated,
    host_records,
    records,
    write_file,
)
from tests.prof_generator.recipe import V6, Recipe
from tests.prof_generator.recording import generate
from tests.prof_generator.timing import DEVICE_COUNTER, HOST_COUNTER
from unified_prof.decoders.prof.layouts import HOST_MAGIC, STARS_MAGIC

ACL, NODE, COMMUNICATION, RUNTIME, AICPU = 20000, 10000, 5500, 5000, 6000
C_CORE, SDMA = 20, 11
_AI_CPU = 1
_OPERATOR, _FLIP, _BOUND, _TASKS = 10, 11, 12, 13
_THREAD = 4000
_CALL_TICKS = 1000


class AicpuProgram:
    """Builds a recording; times are ticks after the start, of the host or of the device."""

    def __init__(self, folder: Path, platform: int = 5) -> None:
        self.path = generate(folder, Recipe(platform=platform, operators=0)).path
        self.wide = platform in V6
        self.names = Names()
        self._host: dict[str, list[Records]] = defaultdict(list)
        self._log: list[Records] = []
        self._aicpu: list[Records] = []
        self._calls = 0

    def group(self, name: str, kernels: int, tasks: tuple[int, ...]) -> int:
        """Declare the streams of a group's kernels and tasks; return the group's hash."""
        hash_id = self.names.hash_id(name)
        self._record(
            "unaging.additional.mc2_comm_info", "mc2_comm_info", NODE, 0, group_name=hash_id,
            stream_id=kernels, stream_num=len(tasks),
            comm_stream_ids=[[*tasks, *[0] * (51 - len(tasks))]],
        )  # fmt: skip
        return hash_id

    def kernel(
        self,
        name: str,
        stream: int,
        task: int,
        begin: int,
        end: int,
        *,
        inside: str = "",
        group: int = 0,
    ) -> None:
        """Launch and run an AI CPU kernel, `inside` a host collective of that group if given."""
        at = self._calls = self._calls + 2 * _CALL_TICKS
        if inside:
            self._call(NODE, "hcom_launch", at, at + 900, inside)
            self._call(COMMUNICATION, "master", at + 10, at + 40, "Notify_Wait")
            self._launch(at + 20, 99, task, "NOTIFY_WAIT", "Notify_Wait")
            self._record(
                "unaging.compact.hccl_op_info", "hccl_op_info", NODE, at + 850, group_name=group
            )
            self.task(99, task, begin - 50, begin - 10)
        self._call(NODE, "launch", at + 100, at + 800, name)
        self._launch(at + 200, stream, task, "KERNEL_AICPU", name)
        self._record(
            "unaging.compact.node_basic_info", "node_basic_info", NODE, at + 300,
            op_name=self.names.hash_id(name), op_type=self.names.hash_id("AllReduce"),
            task_type=_AI_CPU,
        )  # fmt: skip
        self.task(stream, task, begin, end, sqe=_AI_CPU)

    def task(self, stream: int, task: int, begin: int, end: int, *, sqe: int = SDMA) -> None:
        """Log a task on the device."""
        for function, ticks in ((0, begin), (1, end)):
            fields: dict[str, Any] = {
                "w0": function | sqe << 10,
                "magic": STARS_MAGIC,
                "timestamp": DEVICE_COUNTER + ticks,
            }
            if self.wide:
                fields |= {"task_id_low": task & 0xFFFF, "task_id_high": task >> 16}
                self._log.append(records("stars_acsq_v6", 1, **fields))
            else:
                fields |= {"stream_id": stream, "task_id": task}
                self._log.append(records("stars_acsq", 1, **fields))

    def describe(
        self, group: int, stream: int, task: int, at: int = 1, *, item: str = "Memcpy", **more: Any
    ) -> None:
        """Record the purpose of a kernel's task."""
        part = records(
            "aicpu_task", 1, item=self.names.hash_id(item), group=group, stream_id=stream,
            task_id=task, timestamp=DEVICE_COUNTER + at, rdma_type=more.pop("rdma_type", 255),
            **more,
        )  # fmt: skip
        raw = self._aicpu_record(_TASKS, at).view(np.uint8)
        raw[24 : 24 + part.dtype.itemsize] = part.view(np.uint8)
        self._aicpu.append(raw.view("V256"))

    def operator(self, group: int, stream: int, task: int, at: int, flags: int = 0) -> None:
        """Record which collective a kernel runs."""
        self._add("aicpu_operator", _OPERATOR, at, group=group, stream_id=stream, task_id=task,
                  flags=flags)  # fmt: skip

    def bound(self, kernel: tuple[int, int], task: tuple[int, int], at: int, kind: int) -> None:
        """Record the first (kind 0) or the last (1) task that a kernel runs.

        Args:
            kernel: stream and task of the kernel.
            task: stream and task of the task.
            at: time of the record.
            kind: 0 for the first task, 1 for the last.
        """
        words = [kernel, task]
        if self.wide:
            words = [(number & 0xFFFF, number >> 16) for _, number in words]
        (kernel_stream, kernel_task), (stream, number) = words
        self._add("aicpu_bound", _BOUND, at, kernel_stream=kernel_stream, kernel_task=kernel_task,
                  stream_id=stream, task_id=number, kind=kind)  # fmt: skip

    def flip(self, stream: int, at: int) -> None:
        """Record that the task ids of a stream restart, on the device and by the AI CPUs."""
        self._add("aicpu_flip", _FLIP, at, stream_id=stream)
        part = records(
            "ts_task_flip", 1, func_type=0x0E, timestamp=DEVICE_COUNTER + at, stream_id=stream
        )
        write_file(self._device_file("ts_track.data.0"), part.tobytes())

    def write(self) -> Path:
        """Write all files and return the recording's directory."""
        data = self.path / "host" / "data"
        for name, parts in self._host.items():
            write_file(data / f"{name}.slice_0", concatenated(parts).tobytes())
        self.names.write(data)
        log = sorted(self._log, key=lambda part: int(part["timestamp"][0]))
        write_file(self._device_file("stars_soc.data.0"), concatenated(log).tobytes())
        if self._aicpu:
            write_file(self._device_file("aicpu.data.0"), concatenated(self._aicpu).tobytes())
        return self.path

    def _device_file(self, name: str) -> Path:
        return self.path / "device_0" / "data" / f"{name}.slice_0"

    def _aicpu_record(self, kind: int, at: int) -> Records:
        return records(
            "aicpu", 1, magic=HOST_MAGIC, level=AICPU, type=kind, timestamp=DEVICE_COUNTER + at
        )

    def _add(self, layout: str, record_kind: int, at: int, /, **fields: Any) -> None:
        """Add a record of the AI CPUs; the envelope must not overwrite fields that both share."""
        raw = self._aicpu_record(record_kind, at).view(np.uint8)
        body = records(layout, 1, **fields).view(np.uint8)
        raw[24:] = body[24:]
        self._aicpu.append(raw.view("V256"))

    def _record(self, file: str, layout: str, level: int, at: int, **fields: Any) -> None:
        kind = self.names.type_id(level, layout)
        part = host_records(
            layout, 1, level, kind, thread_id=_THREAD, timestamp=HOST_COUNTER + at, **fields
        )
        self._host[file].append(part)

    def _call(self, level: int, name: str, begin: int, end: int, item: str) -> None:
        part = records(
            "api_event", 1, magic=HOST_MAGIC, level=level, type=self.names.type_id(level, name),
            thread_id=_THREAD, begin=HOST_COUNTER + begin, end=HOST_COUNTER + end,
            item_id=self.names.hash_id(item),
        )  # fmt: skip
        self._host["unaging.api_event.data"].append(part)

    def _launch(self, at: int, stream: int, task: int, kind: str, name: str) -> None:
        self._record(
            "unaging.compact.task_track", "task_track", RUNTIME, at, stream_id=stream, task_id=task,
            task_type=self.names.type_id(RUNTIME, kind), kernel_name=self.names.hash_id(name),
        )  # fmt: skip
