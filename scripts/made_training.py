"""Write a synthetic GPU recording of a long training, as converted from torch.profiler.

Each step has a forward pass (two nested operations per kernel), a backward pass on the autograd
thread (a node within a range of the engine per kernel), an optimizer, and a synchronizing call at
the end. All kernels are launched by runtime calls.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.sqlite.writer import ReportWriter

Ints = NDArray[np.int64]
Columns = dict[str, Ints]

FORWARD, BACKWARD, OPTIMIZER = 500, 400, 100
# Number of kernels per step.
STEP = FORWARD + BACKWARD + OPTIMIZER
_OPERATIONS, _CHAINS, _SHAPES, _TYPES = 40, 60, 50, 60
_STEPS_AT_A_TIME = 50
# Thread ids.
_MAIN, _ENGINE = 11, 12
_START_NS = 1_736_410_576_000_000_000
_NO_NUMBER = 4294967295


def make(path: Path, tasks: int, *, kernels: int = 400, seed: int = 0) -> None:
    """Write `tasks` kernels, as many launches, and twice as many ranges.

    Args:
        path: Database to write.
        tasks: Number of kernels, rounded up to complete steps.
        kernels: Number of distinct kernel names.
        seed: Seed; the same seed gives the same database.
    """
    with ReportWriter(path, overwrite=True) as report:
        training = _Training(report, kernels, seed)
        steps = -(-tasks // STEP)
        for first in range(0, steps, _STEPS_AT_A_TIME):
            training.write(min(_STEPS_AT_A_TIME, steps - first))
        begins, ends = np.array(training.steps).T
        report.write("STEP_TIME", {"id": np.arange(len(begins)), "startNs": begins, "endNs": ends})


class _Training:
    def __init__(self, report: ReportWriter, kernels: int, seed: int) -> None:
        self._report, self._random = report, np.random.default_rng(seed)
        text = report.strings.intern_all
        some = range(_OPERATIONS)
        self._outer = np.asarray(text(f"aten::outer_{one}" for one in some))
        self._inner = np.asarray(text(f"aten::inner_{one}" for one in some))
        self._node = np.asarray(text(f"Outer{one}Backward0" for one in some))
        engine = "autograd::engine::evaluate_function: "
        self._engine = np.asarray(text(f"{engine}Outer{one}Backward0" for one in some))
        self._foreach = np.asarray(text(f"aten::_foreach_{one}" for one in range(10)))
        self._kernel = np.asarray(
            text(f"void at::native::kernel_{one}<float>(int)" for one in range(kernels))
        )
        self._type = np.asarray(text(f"aten::type_{one}" for one in range(_TYPES)))
        self._shape = np.asarray(text(f'"{2 ** (one % 6)},64;64,{one}"' for one in range(_SHAPES)))
        self._texts = dict(
            zip(
                ("optimizer", "launch", "copy", "wait", "kind", "dtype", "nothing"),
                text(
                    [
                        "Optimizer.step#AdamW.step",
                        "cudaLaunchKernel",
                        "cudaMemcpyAsync",
                        "cudaStreamSynchronize",
                        "KERNEL",
                        '"float;float"',
                        "N/A",
                    ]
                ),
                strict=True,
            )
        )
        self.steps: list[tuple[int, int]] = []
        self._connection, self._task, self._sequence = 1, 0, 1
        self._write_chains()

    def _write_chains(self) -> None:
        text = self._report.strings.intern
        depth = 3
        stacks = [
            (
                text(f"/home/me/model/part_{one % 7}.py({one}): forward"),
                text(f"nn.Module: Layer_{one % 12}"),
                text("nn.Module: Model_0"),
            )
            for one in range(_CHAINS)
        ]
        self._report.write(
            "PYTORCH_CALLCHAINS",
            {
                "id": np.repeat(np.arange(1, _CHAINS + 1), depth),
                "stack": np.array(stacks).ravel(),
                "stackDepth": np.tile(np.arange(depth), _CHAINS),
            },
        )
        self._report.write("NPU_INFO", {"id": np.zeros(1, int), "name": ["NVIDIA H100 80GB HBM3"]})

    def write(self, count: int) -> None:
        """Write `count` steps."""
        written: dict[str, list[Columns]] = {}
        for _ in range(count):
            for table, rows in self._step():
                written.setdefault(table, []).append(rows)
        for table, parts in written.items():
            columns = {name: np.concatenate([one[name] for one in parts]) for name in parts[0]}
            self._report.write(table, self._finished(table, columns))

    def _finished(self, table: str, columns: Columns) -> dict[str, Any]:
        texts = self._texts
        if table == "PYTORCH_API":
            order = np.lexsort((-columns["endNs"], columns["startNs"]))
            columns = {name: values[order] for name, values in columns.items()}
            # -1 means that torch recorded no value.
            holes = {
                name: np.ma.masked_equal(columns[name], -1)
                for name in ("connectionId", "callchainId", "inputShapes")
            }
            hidden = np.ma.getmaskarray(holes["inputShapes"])
            return {
                **columns,
                **holes,
                "inputDtypes": np.ma.masked_where(hidden, np.full(len(order), texts["dtype"])),
                "startNs": columns["startNs"].astype("U19"),
                "endNs": columns["endNs"].astype("U19"),
                "type": 50001,
            }
        always: dict[str, dict[str, Any]] = {
            "CANN_API": {"type": 5000},
            "TASK": {
                "deviceId": 0,
                "globalPid": 77,
                "taskType": texts["kind"],
                "contextId": _NO_NUMBER,
                "taskId": _NO_NUMBER,
                "modelId": _NO_NUMBER,
            },
            "COMPUTE_TASK_INFO": {"blockNum": 8, "mixBlockNum": 0, "taskType": texts["kind"]},
            "UPROF_GPU_TASKS": {"gridDim": texts["nothing"], "blockDim": texts["nothing"]},
        }
        return {**columns, **always.get(table, {})}

    def _step(self) -> list[tuple[str, Columns]]:
        random, texts = self._random, self._texts
        begin = self.steps[-1][1] + 100 if self.steps else _START_NS
        at = begin + 1000 + np.cumsum(random.integers(2000, 9000, STEP))
        end = int(at[-1]) + 8000
        which = random.integers(0, _OPERATIONS, FORWARD)
        made = np.arange(self._sequence, self._sequence + FORWARD)
        connection = np.arange(self._connection, self._connection + STEP)
        identity = np.arange(self._task, self._task + STEP)
        forward, backward, last = np.split(at, [FORWARD, FORWARD + BACKWARD])
        # Backward runs the nodes in reverse order.
        node, back = made[::-1][:BACKWARD], which[::-1][:BACKWARD]
        own, theirs, rest = np.split(connection, [FORWARD, FORWARD + BACKWARD])
        (name,) = self._report.strings.intern_all([f"ProfilerStep#{len(self.steps)}"])
        shape, chain = self._shape[which % _SHAPES], which % _CHAINS + 1
        parts = [
            _ranges(forward, 1900, self._outer[which], sequence=made, chain=chain, shape=shape),
            _ranges(
                forward + 100,
                1600,
                self._inner[which],
                sequence=made,
                chain=chain,
                shape=shape,
                connection=own,
            ),
            _ranges(backward, 1900, self._engine[back], _ENGINE, sequence=node, forward=_MAIN),
            _ranges(
                backward + 50,
                1750,
                self._node[back],
                _ENGINE,
                sequence=node,
                forward=_MAIN,
                connection=theirs,
            ),
            _ranges(last[:1] - 200, int(last[-1] - last[0]) + 2100, texts["optimizer"]),
            _ranges(last, 1900, self._foreach[np.arange(OPTIMIZER) % 10], chain=7, connection=rest),
            _ranges(np.array([begin]), end - begin, name),
        ]
        kernel = np.concatenate((which, back + 100, random.integers(200, 210, OPTIMIZER)))
        if len(self._kernel) > STEP:
            kernel = random.integers(0, len(self._kernel), STEP)
        started = at + random.integers(1500, 2000, STEP)
        copies = np.arange(STEP) % 50 == 0
        thread = np.repeat([_MAIN, _ENGINE, _MAIN], [FORWARD, BACKWARD, OPTIMIZER])
        rows = {"name": self._kernel[kernel], "globalTaskId": identity}
        self.steps.append((begin, end))
        self._connection += STEP + 1
        self._task += STEP
        self._sequence += FORWARD
        return [
            (
                "PYTORCH_API",
                {name: np.concatenate([one[name] for one in parts]) for name in parts[0]},
            ),
            ("CONNECTION_IDS", {"id": connection, "connectionId": connection}),
            (
                "CANN_API",
                {
                    "startNs": np.append(at + 300, end - 5000),
                    "endNs": np.append(at + 1200, end - 1000),
                    "globalTid": np.append(thread, _MAIN),
                    "connectionId": np.append(connection, connection[-1] + 1),
                    "name": np.append(
                        np.where(copies, texts["copy"], texts["launch"]), texts["wait"]
                    ),
                },
            ),
            (
                "TASK",
                {
                    "startNs": started,
                    "endNs": started + random.integers(500, 2000, STEP),
                    "connectionId": connection,
                    "globalTaskId": identity,
                    "streamId": np.where(np.arange(STEP) % 9 == 0, 20, 7),
                },
            ),
            ("COMPUTE_TASK_INFO", {**rows, "opType": self._type[kernel % _TYPES]}),
            ("UPROF_GPU_TASKS", {**rows, "operation": self._type[kernel % _TYPES]}),
        ]


def _ranges(
    start: Ints,
    length: int,
    name: Ints | int,
    thread: int = _MAIN,
    *,
    sequence: Ints | int = -1,
    forward: int = 0,
    chain: Ints | int = -1,
    shape: Ints | int = -1,
    connection: Ints | int = -1,
) -> Columns:
    columns = {
        "startNs": start,
        "endNs": start + length,
        "globalTid": thread,
        "name": name,
        "sequenceNumber": sequence,
        "fwdThreadId": forward,
        "callchainId": chain,
        "inputShapes": shape,
        "connectionId": connection,
    }
    return {
        one: np.broadcast_to(np.asarray(values, np.int64), len(start))
        for one, values in columns.items()
    }
