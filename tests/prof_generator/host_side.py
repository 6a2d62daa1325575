"""The host's share of a generated recording: launches besides operators, and marks."""

import numpy as np

from tests.prof_generator.encode import host_records
from tests.prof_generator.host_recorder import (
    ACL,
    COMMUNICATION,
    FIRST_CALL_NS,
    MARKS,
    NODE,
    RUNTIME,
    US,
    HostRecorder,
)
from tests.prof_generator.operators import Operators
from tests.prof_generator.recipe import PROCESS_ID, V6, Recipe
from tests.prof_generator.tables import Tables
from tests.prof_generator.timing import Int64, Timing
from tests.prof_generator.workload import (
    IS_MIX,
    KINDS,
    MEMCPY,
    NO_CONTEXT,
    NOTIFY_RECORD,
    NOTIFY_WAIT,
    Placed,
)

_FLIP_TYPE = 98
_WITH_EXTENSION, _WITHOUT_EXTENSION = 40, 24
_MEMCPY_CHUNK = 1 << 26
_DIRECTIONS, _OTHER_OPERATION = 4, 65535
_FIRST_MARK_CONNECTION = 4_000_000_001
_GROUP = "world_group"
_COLLECTIVE_STEPS = (
    ("Notify_Wait", NOTIFY_WAIT, 0),
    ("Memcpy", MEMCPY, 4096),
    ("Notify_Record", NOTIFY_RECORD, 0),
)
_STEP_NS = 20 * US


class HostSide:
    """Launches a workload on every device and records it."""

    def __init__(self, recipe: Recipe, timing: Timing, tables: Tables) -> None:
        self.recipe, self.timing, self.tables = recipe, timing, tables
        self.recorder = HostRecorder(recipe, timing, tables)
        self._operators = Operators(self.recorder)
        self._copies: list[tuple[Int64, Int64, Int64]] = []
        """Rows of the tasks, sizes and directions."""

    def run(self) -> Placed:
        """Launch everything; return where and when it runs."""
        for index, device in enumerate(self.recipe.devices):
            threads = 2000 + 100 * index + np.arange(self.recipe.threads)
            self._operators.launch(device, threads)
            spare = 2090 + 100 * index
            self._launch_copies(device, spare)
            self._launch_collectives(device, spare + 1)
            self._record_marks(index, spare + 2)
            self._record_allocations(device, spare + 3)
        placed = self.recorder.workload.placed()
        self._record_launches(placed)
        self._operators.expect(placed)
        for rows, size, direction in self._copies:
            self.tables.add(
                "MEMCPY_INFO",
                len(rows),
                size=size,
                memcpyOperation=direction,
                **self.recorder.task_columns(placed, rows),
            )
        return placed

    def _launch_copies(self, device: int, thread: int) -> None:
        recorder, count = self.recorder, self.recipe.copies
        if not count:
            return
        begin = FIRST_CALL_NS + np.arange(count) * 70 * US
        recorder.call(ACL, "aclrtMemcpyAsync", thread, begin, begin + 30 * US)
        recorder.call(RUNTIME, "MemcpyAsync", thread, begin + 2 * US, begin + 20 * US)
        size = recorder.rng.integers(1, _MEMCPY_CHUNK, count)
        direction = recorder.rng.integers(0, _DIRECTIONS, count)
        rows = recorder.workload.launch(
            count, launch_ns=begin + 6 * US, duration_ns=recorder.rng.integers(1, 20, count) * US,
            device=device, thread=thread, stream=7, kind=MEMCPY,
        )  # fmt: skip
        recorder.record(
            "unaging.compact.memcpy_info", "memcpy_info", RUNTIME, thread, begin + 6 * US,
            data_size=size, max_size=_MEMCPY_CHUNK, direction=direction, data_len=18,
        )  # fmt: skip
        self._copies.append((rows, size, direction))

    def _launch_collectives(self, device: int, thread: int) -> None:
        recorder, names = self.recorder, self.recorder.names
        length = _STEP_NS * (len(_COLLECTIVE_STEPS) + 1)
        for index in range(self.recipe.collectives):
            begin = FIRST_CALL_NS + index * (length + 10 * US)
            name = names.hash_id(f"hcom_allReduce__{index}")
            recorder.call(ACL, "HcclAllReduce", thread, [begin], [begin + length])
            recorder.call(NODE, "launch", thread, [begin + US], [begin + length - US], name)
            self._describe_collective(thread, begin + length - 2 * US, name, index)
            for step, (text, kind, size) in enumerate(_COLLECTIVE_STEPS, start=1):
                at, item = begin + step * _STEP_NS, names.hash_id(text)
                recorder.call(COMMUNICATION, "master", thread, [at], [at + 16 * US], item, text)
                recorder.record(
                    "unaging.additional.hccl_info", "hccl_info", COMMUNICATION, thread,
                    [at + 12 * US], item_id=item, group_name=names.hash_id(_GROUP), rank_size=2,
                    remote_rank=1, context_id=NO_CONTEXT, notify_id=77, size_bytes=size,
                    data_type=3, link_type=1, rdma_type=NO_CONTEXT,
                )  # fmt: skip
                rows = recorder.workload.launch(
                    1, launch_ns=at + 8 * US, duration_ns=5 * US, device=device, thread=thread,
                    stream=40, kind=kind, kernel=item,
                )  # fmt: skip
                if kind == MEMCPY and self.recipe.copies:
                    # Copies without a record are listed only if copies are recorded.
                    self._copies.append((rows, np.zeros(1, int), np.full(1, _OTHER_OPERATION)))

    def _describe_collective(self, thread: int, at: int, name: int, index: int) -> None:
        recorder, names = self.recorder, self.recorder.names
        recorder.record(
            "unaging.compact.node_basic_info", "node_basic_info", NODE, thread, [at], op_name=name,
            task_type=9, op_type=names.hash_id("hcom_allReduce_"), data_len=28,
        )  # fmt: skip
        recorder.record(
            "unaging.compact.hccl_op_info", "hccl_op_info", NODE, thread, [at], data_type=3,
            alg_type=names.hash_id("MESH-RING"), count=1024 * (index + 1),
            group_name=names.hash_id(_GROUP), data_len=26,
        )  # fmt: skip

    def _record_marks(self, device_index: int, thread: int) -> None:
        recorder, count = self.recorder, self.recipe.marks
        if not count:
            return
        index = np.arange(count)
        is_range = index % 2 == 1
        moment = FIRST_CALL_NS + index * 50 * US
        begin = self.timing.host_ticks(moment)
        end = self.timing.host_ticks(moment + np.where(is_range, 30 * US, 0))
        texts = [f"step {one}" if one % 3 else f"Schritt-{one}-步" for one in index.tolist()]
        mark = device_index * 1_000_000 + index
        part = host_records(
            "msproftx", count, MARKS, recorder.names.type_id(MARKS, "msproftx"), thread_id=thread,
            timestamp=begin, info_type=1, process_id=PROCESS_ID, tx_thread_id=thread,
            event_type=is_range, start=begin, end=end, mark_id=mark,
            domain=recorder.names.hash_id("default"), message=[text.encode() for text in texts],
        )  # fmt: skip
        recorder.files.add("unaging.additional.msproftx", part)
        self.tables.add(
            "MSTX_EVENTS", count, startNs=self.timing.host_ns(begin),
            endNs=self.timing.host_ns(end), eventType=is_range.astype(int),
            message=np.array(texts, object), domainId="default",
            globalTid=PROCESS_ID << 32 | thread, connectionId=_FIRST_MARK_CONNECTION + mark,
        )  # fmt: skip

    def _record_allocations(self, device: int, thread: int) -> None:
        recorder, count = self.recorder, self.recipe.allocations
        if not count:
            return
        index = np.arange(count)
        sign = np.where(index % 3 == 2, -1, 1)
        size = recorder.rng.integers(1, 1 << 30, count)
        total = np.cumsum(size)
        address = 0x1000_0000 + index * 512
        part = recorder.record(
            "unaging.additional.task_memory_info", "task_memory_info", NODE, thread,
            FIRST_CALL_NS + index * 30 * US, addr=address, size_bytes=size * sign,
            node_id=recorder.names.hash_id("allocator"), total_allocate=total,
            total_reserve=1 << 40, device_id=device, device_type=20,
        )  # fmt: skip
        self.tables.add(
            "NPU_OP_MEM", count, operatorName="allocator", addr=address,
            type=np.where(sign < 0, "release", "allocate").astype(object), size=size,
            timestampNs=self.timing.host_ns(part["timestamp"]), globalTid=PROCESS_ID << 32 | thread,
            totalAllocate=total, totalReserve=1 << 40, component="GE", deviceId=device,
        )  # fmt: skip

    def _record_launches(self, placed: Placed) -> None:
        """Write task_track: every launch, and the flips of task ids."""
        recorder, tasks = self.recorder, placed.tasks
        types = np.array([recorder.names.type_id(RUNTIME, kind.name) for kind in KINDS])
        wide = self.recipe.platform in V6
        extended = IS_MIX[tasks["kind"]]
        recorder.record(
            "unaging.compact.task_track", "task_track", RUNTIME, tasks["thread"],
            tasks["launch_ns"], device_id=tasks["device"], stream_id=tasks["stream"],
            task_id=placed.task_id if wide else placed.task_id | placed.batch << 16,
            task_type=types[tasks["kind"]], kernel_name=tasks["kernel"],
            block_num=np.where(extended, tasks["block_num"], 0),
            ratio_bits=np.where(extended, tasks["ratio"], 0),
            data_len=np.where(extended, _WITH_EXTENSION, _WITHOUT_EXTENSION),
        )  # fmt: skip
        if not len(placed.flips):
            return
        first = tasks[placed.flips]
        recorder.record(
            "unaging.compact.task_track", "task_track", RUNTIME, first["thread"],
            first["launch_ns"] - US, device_id=first["device"], stream_id=first["stream"],
            task_id=placed.batch[placed.flips] << 16, task_type=_FLIP_TYPE,
        )  # fmt: skip
