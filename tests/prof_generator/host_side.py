"""The host's records of a generated workload: calls, descriptions, launches, marks, memory."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.prof_generator.encode import HostFiles, Names, Records, host_records, records
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
    Workload,
)
from unified_prof.decoders.prof.layouts import HOST_MAGIC

ACL, NODE, COMMUNICATION, RUNTIME, MARKS = 20000, 10000, 5500, 5000, 20500
_US = 1000
_OPERATORS_NS = 1_000 * _US
_OPERATOR_TYPES = ("MatMulV3", "Add", "RmsNorm", "SwiGlu", "Transpose")
_ND, _FLOAT16, _FLOAT = 2, 1, 0
_FLIP_TYPE = 98
_TASK_IN_EXTENSION, _TASK_PLAIN = 40, 24
_MEMCPY_CHUNK = 1 << 26
_DIRECTIONS = 4
_FIRST_MARK_CONNECTION = 4_000_000_001
_GROUP = "world_group"
_COMMUNICATION_STEPS = (
    ("Notify_Wait", NOTIFY_WAIT, 0),
    ("Memcpy", MEMCPY, 1),
    ("Notify_Record", NOTIFY_RECORD, 0),
)


class HostSide:
    """Launches a workload and writes down what the host's profiler would have."""

    def __init__(self, recipe: Recipe, timing: Timing, tables: Tables) -> None:
        self.recipe, self.timing, self.tables = recipe, timing, tables
        self.files, self.names = HostFiles(), Names()
        self.workload = Workload(recipe)
        self.rng = np.random.default_rng([recipe.seed, 1])
        self._operators: list[tuple[NDArray[np.int64], dict[str, Any]]] = []
        self._copies: list[tuple[NDArray[np.int64], dict[str, Any]]] = []

    def run(self) -> Placed:
        """Launch everything on every device and record it."""
        recipe = self.recipe
        for index, device in enumerate(recipe.devices):
            threads = 2000 + 100 * index + np.arange(recipe.threads)
            self._launch_operators(device, threads)
            spare = 2090 + 100 * index
            self._launch_copies(device, spare)
            self._launch_collectives(device, spare + 1)
            self._record_marks(spare + 2)
            self._record_allocations(device, spare + 3)
        placed = self.workload.placed()
        self._record_launches(placed)
        self._describe_tasks(placed)
        return placed

    def _call(
        self,
        level: int,
        name: str,
        thread: Any,
        begin_ns: Any,
        end_ns: Any,
        item: Any = 0,
        shown: Any = None,
    ) -> None:
        """Record calls; `shown` is what the database calls them instead of `name`."""
        count = len(np.atleast_1d(begin_ns))
        begin, end = self.timing.host_ticks(begin_ns), self.timing.host_ticks(end_ns)
        call = records(
            "api_event",
            count,
            magic=HOST_MAGIC,
            level=level,
            type=self.names.type_id(level, name),
            thread_id=thread,
            begin=begin,
            end=end,
            item_id=item,
        )
        self.files.add("unaging.api_event.data", call, "begin")
        self.tables.add(
            "CANN_API",
            count,
            startNs=self.timing.host_ns(begin),
            endNs=self.timing.host_ns(end),
            type=level,
            globalTid=PROCESS_ID << 32 | np.asarray(thread, np.int64),
            name=name if shown is None else shown,
        )

    def _record(
        self, file_name: str, layout: str, level: int, thread: Any, moment_ns: Any, **fields: Any
    ) -> Records:
        count = len(np.atleast_1d(moment_ns))
        kind = file_name.rpartition(".")[2]
        part = host_records(
            layout,
            count,
            level,
            self.names.type_id(level, kind),
            thread_id=thread,
            timestamp=self.timing.host_ticks(moment_ns),
            **fields,
        )
        self.files.add(file_name, part)
        return part

    def _launch_operators(self, device: int, threads: Int64) -> None:
        recipe, rng, count = self.recipe, self.rng, self.recipe.operators
        if not count:
            return
        worker = np.arange(count) % len(threads)
        begin = _OPERATORS_NS + np.arange(count) // len(threads) * 60 * _US
        begin = begin + rng.integers(0, 10, count) * _US
        thread = threads[worker]
        kind = rng.integers(0, 2, count)
        if recipe.platform == 5:
            kind += 2 * (rng.random(count) < recipe.mix_share)
        type_index = rng.integers(0, len(_OPERATOR_TYPES), count)
        type_hash = self.names.hash_ids(_OPERATOR_TYPES)[type_index]
        texts = [f"{name}_{seat}" for seat in range(7) for name in _OPERATOR_TYPES]
        text_index = rng.integers(0, 7, count) * len(_OPERATOR_TYPES) + type_index
        name_hash = self.names.hash_ids(texts)[text_index]
        name = np.array(texts, object)[text_index]
        block_num = rng.integers(1, 49, count)
        ratio = np.where(IS_MIX[kind], rng.integers(1, 3, count), 0)
        self._call(ACL, "aclnnOperator", thread, begin, begin + 40 * _US)
        self._call(NODE, "launch", thread, begin + 2 * _US, begin + 36 * _US, name_hash)
        self._call(RUNTIME, "KernelLaunch", thread, begin + 4 * _US, begin + 12 * _US)
        rows = self.workload.launch(
            count,
            launch_ns=begin + 8 * _US,
            duration_ns=rng.integers(2, 40, count) * _US,
            device=device,
            thread=thread,
            stream=20 + worker * recipe.streams + rng.integers(0, recipe.streams, count),
            kind=kind,
            kernel=type_hash,
            block_num=block_num,
            ratio=ratio,
        )
        described = begin + 30 * _US
        shape = rng.integers(1, 4096, (count, 2))
        if recipe.described:
            self._describe(thread, described, name_hash, kind, type_hash, block_num, ratio, shape)
        self._operators.append(
            (
                rows,
                {
                    "name": name,
                    "opType": np.array(_OPERATOR_TYPES, object)[type_index],
                    "kind": kind,
                    "block_num": block_num,
                    "ratio": ratio,
                    "shape": shape,
                },
            )
        )

    def _describe(
        self,
        thread: Any,
        moment_ns: Int64,
        name: Any,
        kind: Any,
        type_hash: Any,
        block_num: Any,
        ratio: Any,
        shape: Any,
    ) -> None:
        types = np.array([one.operator_type for one in KINDS])
        self._record(
            "aging.compact.node_basic_info",
            "node_basic_info",
            NODE,
            thread,
            moment_ns,
            op_name=name,
            task_type=types[kind],
            op_type=type_hash,
            block_dim=block_num | ratio << 16,
            data_len=28,
        )
        tensors = np.zeros((len(moment_ns), 5, 11), np.uint32)
        tensors[:, 0, :3], tensors[:, 0, 3:5] = (0, _ND, _FLOAT16), shape
        tensors[:, 1, :3], tensors[:, 1, 3:5] = (1, _ND, _FLOAT), shape[:, ::-1]
        self._record(
            "aging.additional.tensor_info",
            "tensor_info",
            NODE,
            thread,
            moment_ns,
            op_name=name,
            tensor_num=2,
            tensors=tensors.reshape(-1, 55),
        )
        mixed = IS_MIX[kind]
        if mixed.any():
            self._record(
                "unaging.additional.context_id_info",
                "context_id_info",
                NODE,
                thread[mixed],
                moment_ns[mixed],
                op_name=name[mixed],
                context_num=1,
            )

    def _launch_copies(self, device: int, thread: int) -> None:
        count = self.recipe.copies
        begin = _OPERATORS_NS + np.arange(count) * 70 * _US
        if not count:
            return
        self._call(ACL, "aclrtMemcpyAsync", thread, begin, begin + 30 * _US)
        self._call(RUNTIME, "MemcpyAsync", thread, begin + 2 * _US, begin + 20 * _US)
        size = self.rng.integers(1, _MEMCPY_CHUNK, count)
        direction = self.rng.integers(0, _DIRECTIONS, count)
        rows = self.workload.launch(
            count,
            launch_ns=begin + 6 * _US,
            duration_ns=self.rng.integers(1, 20, count) * _US,
            device=device,
            thread=thread,
            stream=7,
            kind=MEMCPY,
        )
        self._record(
            "unaging.compact.memcpy_info",
            "memcpy_info",
            RUNTIME,
            thread,
            begin + 6 * _US,
            data_size=size,
            max_size=_MEMCPY_CHUNK,
            direction=direction,
            data_len=18,
        )
        self._copies.append((rows, {"size": size, "memcpyOperation": direction}))

    def _launch_collectives(self, device: int, thread: int) -> None:
        group = self.names.hash_id(_GROUP)
        length = 20 * _US * (len(_COMMUNICATION_STEPS) + 1)
        for index in range(self.recipe.collectives):
            begin = _OPERATORS_NS + index * (length + 10 * _US)
            name = self.names.hash_id(f"hcom_allReduce__{index}")
            self._call(ACL, "HcclAllReduce", thread, [begin], [begin + length])
            self._call(NODE, "launch", thread, [begin + _US], [begin + length - _US], name)
            self._describe_collective(thread, begin + length - 2 * _US, name, group, index)
            for step, (text, kind, transferred) in enumerate(_COMMUNICATION_STEPS):
                at, item = begin + (step + 1) * 20 * _US, self.names.hash_id(text)
                self._call(COMMUNICATION, "master", thread, [at], [at + 16 * _US], item, text)
                self._record(
                    "unaging.additional.hccl_info",
                    "hccl_info",
                    COMMUNICATION,
                    thread,
                    [at + 12 * _US],
                    item_id=item,
                    group_name=group,
                    rank_size=2,
                    remote_rank=1,
                    context_id=NO_CONTEXT,
                    notify_id=77,
                    size_bytes=4096 * transferred,
                    data_type=3,
                    link_type=1,
                    rdma_type=NO_CONTEXT,
                )
                self.workload.launch(
                    1,
                    launch_ns=at + 8 * _US,
                    duration_ns=5 * _US,
                    device=device,
                    thread=thread,
                    stream=40,
                    kind=kind,
                    kernel=item,
                )

    def _describe_collective(self, thread: int, at: int, name: int, group: int, index: int) -> None:
        self._record(
            "unaging.compact.node_basic_info",
            "node_basic_info",
            NODE,
            thread,
            [at],
            op_name=name,
            task_type=9,
            op_type=self.names.hash_id("hcom_allReduce_"),
            data_len=28,
        )
        self._record(
            "unaging.compact.hccl_op_info",
            "hccl_op_info",
            NODE,
            thread,
            [at],
            data_type=3,
            alg_type=self.names.hash_id("MESH-RING"),
            count=1024 * (index + 1),
            group_name=group,
            data_len=26,
        )

    def _record_marks(self, thread: int) -> None:
        count = self.recipe.marks
        if not count:
            return
        index = np.arange(count)
        begin = self.timing.host_ticks(_OPERATORS_NS + index * 50 * _US)
        is_range = index % 2 == 1
        length = np.where(is_range, 30 * _US, 0)
        end = self.timing.host_ticks(_OPERATORS_NS + index * 50 * _US + length)
        texts = [f"step {one}" if one % 3 else f"Schritt-{one}-步" for one in index]
        mark = (thread - 2000) * 10_000 + index
        part = host_records(
            "msproftx",
            count,
            MARKS,
            self.names.type_id(MARKS, "msproftx"),
            thread_id=thread,
            timestamp=begin,
            info_type=1,
            process_id=PROCESS_ID,
            tx_thread_id=thread,
            event_type=is_range,
            start=begin,
            end=end,
            mark_id=mark,
            domain=self.names.hash_id("default"),
            message=[text.encode() for text in texts],
        )
        self.files.add("unaging.additional.msproftx", part)
        self.tables.add(
            "MSTX_EVENTS",
            count,
            startNs=self.timing.host_ns(begin),
            endNs=self.timing.host_ns(end),
            eventType=is_range.astype(int),
            message=np.array(texts, object),
            domainId="default",
            globalTid=PROCESS_ID << 32 | thread,
            connectionId=_FIRST_MARK_CONNECTION + mark,
        )

    def _record_allocations(self, device: int, thread: int) -> None:
        count = self.recipe.allocations
        if not count:
            return
        index = np.arange(count)
        sign = np.where(index % 3 == 2, -1, 1)
        size = self.rng.integers(1, 1 << 30, count) * sign
        total = np.cumsum(np.abs(size))
        part = self._record(
            "unaging.additional.task_memory_info",
            "task_memory_info",
            NODE,
            thread,
            _OPERATORS_NS + index * 30 * _US,
            addr=0x1000_0000 + index * 512,
            size_bytes=size,
            node_id=self.names.hash_id("allocator"),
            total_allocate=total,
            total_reserve=1 << 40,
            device_id=device,
            device_type=20,
        )
        self.tables.add(
            "NPU_OP_MEM",
            count,
            operatorName="allocator",
            addr=0x1000_0000 + index * 512,
            type=np.where(sign < 0, "release", "allocate").astype(object),
            size=np.abs(size),
            timestampNs=self.timing.host_ns(part["timestamp"]),
            globalTid=PROCESS_ID << 32 | thread,
            totalAllocate=total,
            totalReserve=1 << 40,
            component="GE",
            deviceId=device,
        )

    def _record_launches(self, placed: Placed) -> None:
        """Write task_track: every launch, and the flips of task ids."""
        tasks = placed.tasks
        types = np.array([self.names.type_id(RUNTIME, kind.name) for kind in KINDS])
        wide = self.recipe.platform in V6
        in_extension = IS_MIX[tasks["kind"]]
        self._record(
            "unaging.compact.task_track",
            "task_track",
            RUNTIME,
            tasks["thread"],
            tasks["launch_ns"],
            device_id=tasks["device"],
            stream_id=tasks["stream"],
            task_id=placed.task_id if wide else placed.task_id | placed.batch << 16,
            task_type=types[tasks["kind"]],
            kernel_name=tasks["kernel"],
            block_num=np.where(in_extension, tasks["block_num"], 0),
            ratio_bits=np.where(in_extension, tasks["ratio"], 0),
            data_len=np.where(in_extension, _TASK_IN_EXTENSION, _TASK_PLAIN),
        )
        if not len(placed.flips):
            return
        first = tasks[placed.flips]
        self._record(
            "unaging.compact.task_track",
            "task_track",
            RUNTIME,
            first["thread"],
            first["launch_ns"] - _US,
            device_id=first["device"],
            stream_id=first["stream"],
            task_id=placed.batch[placed.flips] << 16,
            task_type=_FLIP_TYPE,
        )

    def _describe_tasks(self, placed: Placed) -> None:
        """Say what the database must have about operators and copies."""
        start = self.timing.device_ns(self.timing.device_ticks(placed.start_ns))
        for rows, operator in self._operators:
            count, kind = len(rows), operator["kind"]
            described = self.recipe.described
            mixed = IS_MIX[kind]
            shape = operator["shape"]
            texts = {
                "taskType": np.array([one.operator_type_name for one in KINDS], object)[kind],
                "opType": operator["opType"],
                "inputShapes": np.array([f'"{a},{b}"' for a, b in shape.tolist()], object),
                "outputShapes": np.array([f'"{b},{a}"' for a, b in shape.tolist()], object),
                "inputFormats": "ND",
                "inputDataTypes": "FLOAT16",
                "outputDataTypes": "FLOAT",
            }
            if not described:
                texts = dict.fromkeys(texts, "N/A")
            known = described | mixed
            self.tables.add(
                "COMPUTE_TASK_INFO",
                count,
                name=operator["name"],
                **texts,
                blockNum=np.where(known, operator["block_num"], 0),
                mixBlockNum=np.where(known, operator["block_num"] * operator["ratio"], 0),
                startNs=start[rows],
                streamId=placed.tasks["stream"][rows],
                taskId=placed.task_id[rows],
                deviceId=placed.tasks["device"][rows],
            )
        for rows, copy in self._copies:
            self.tables.add(
                "MEMCPY_INFO",
                len(rows),
                **copy,
                startNs=start[rows],
                streamId=placed.tasks["stream"][rows],
                taskId=placed.task_id[rows],
                deviceId=placed.tasks["device"][rows],
            )
