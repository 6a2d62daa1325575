"""Compute operators of a generated workload: their calls, launches and descriptions."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.prof_generator.host_recorder import ACL, FIRST_CALL_NS, NODE, RUNTIME, US, HostRecorder
from tests.prof_generator.timing import Int64
from tests.prof_generator.workload import IS_MIX, KINDS, Placed

_TYPES = ("MatMulV3", "Add", "RmsNorm", "SwiGlu", "Transpose")
_NAMES_OF_A_TYPE = 7
_ND, _FLOAT16, _FLOAT = 2, 1, 0

_OPERATOR = np.dtype(
    [
        ("row", np.int64),
        ("name", np.int64),
        ("type", np.int64),
        ("kind", np.int64),
        ("block_num", np.int64),
        ("ratio", np.int64),
        ("shape", np.int64, 2),
    ]
)


class Operators:
    """Launches compute operators and adds their expected rows."""

    def __init__(self, recorder: HostRecorder) -> None:
        self._recorder = recorder
        self._names = [f"{name}_{seat}" for name in _TYPES for seat in range(_NAMES_OF_A_TYPE)]
        self._launched: list[NDArray[Any]] = []

    def launch(self, device: int, threads: Int64) -> None:
        """Launch a device's operators, one after another from every thread."""
        recorder = self._recorder
        recipe, rng, count = recorder.recipe, recorder.rng, recorder.recipe.operators
        if not count:
            return
        worker = np.arange(count) % len(threads)
        begin = FIRST_CALL_NS + np.arange(count) // len(threads) * 60 * US
        begin = begin + rng.integers(0, 10, count) * US
        operators = self._choose(count)
        name = recorder.names.hash_ids(self._names)[operators["name"]]
        kernel = recorder.names.hash_ids(_TYPES)[operators["type"]]
        thread = threads[worker]
        recorder.call(ACL, "aclnnOperator", thread, begin, begin + 40 * US)
        recorder.call(NODE, "launch", thread, begin + 2 * US, begin + 36 * US, name)
        recorder.call(RUNTIME, "KernelLaunch", thread, begin + 4 * US, begin + 12 * US)
        operators["row"] = recorder.workload.launch(
            count, launch_ns=begin + 8 * US, duration_ns=rng.integers(2, 40, count) * US,
            device=device, thread=thread,
            stream=20 + worker * recipe.streams + rng.integers(0, recipe.streams, count),
            kernel=kernel, **{field: operators[field] for field in ("kind", "block_num", "ratio")},
        )  # fmt: skip
        described = begin + 30 * US
        if recipe.described:
            self._describe(operators, thread, described, name, kernel)
        mixed = IS_MIX[operators["kind"]]
        if mixed.any():
            recorder.record(
                "unaging.additional.context_id_info", "context_id_info", NODE, thread[mixed],
                described[mixed], op_name=name[mixed], context_num=1,
            )  # fmt: skip
        self._launched.append(operators)

    def _choose(self, count: int) -> NDArray[Any]:
        recipe, rng = self._recorder.recipe, self._recorder.rng
        operators = np.zeros(count, _OPERATOR)
        operators["type"] = rng.integers(0, len(_TYPES), count)
        operators["name"] = operators["type"] * _NAMES_OF_A_TYPE
        operators["name"] += rng.integers(0, _NAMES_OF_A_TYPE, count)
        operators["kind"] = rng.integers(0, 2, count)
        if recipe.platform == 5:
            operators["kind"] += 2 * (rng.random(count) < recipe.mix_share)
        operators["block_num"] = rng.integers(1, 49, count)
        mixed = IS_MIX[operators["kind"]]
        operators["ratio"] = np.where(mixed, rng.integers(1, 3, count), 0)
        operators["shape"] = rng.integers(1, 4096, (count, 2))
        return operators

    def _describe(
        self, operators: NDArray[Any], thread: Int64, moment_ns: Int64, name: Any, kernel: Any
    ) -> None:
        recorder = self._recorder
        types = np.array([one.operator_type for one in KINDS])
        recorder.record(
            "aging.compact.node_basic_info", "node_basic_info", NODE, thread, moment_ns,
            op_name=name, task_type=types[operators["kind"]], op_type=kernel,
            block_dim=operators["block_num"] | operators["ratio"] << 16, data_len=28,
        )  # fmt: skip
        shape = operators["shape"]
        tensors = np.zeros((len(operators), 5, 11), np.uint32)
        tensors[:, 0, :3], tensors[:, 0, 3:5] = (0, _ND, _FLOAT16), shape
        tensors[:, 1, :3], tensors[:, 1, 3:5] = (1, _ND, _FLOAT), shape[:, ::-1]
        recorder.record(
            "aging.additional.tensor_info", "tensor_info", NODE, thread, moment_ns, op_name=name,
            tensor_num=2, tensors=tensors.reshape(-1, 55),
        )  # fmt: skip

    def expect(self, placed: Placed) -> None:
        """Add the expected rows of every operator."""
        type_names = np.array([one.operator_type_name for one in KINDS], object)
        for operators in self._launched:
            row, kind = operators["row"], operators["kind"]
            texts: dict[str, Any] = {
                "taskType": type_names[kind],
                "opType": np.array(_TYPES, object)[operators["type"]],
                "inputShapes": _quoted(operators["shape"]),
                "outputShapes": _quoted(operators["shape"][:, ::-1]),
                "inputFormats": "ND",
                "inputDataTypes": "FLOAT16",
                "outputDataTypes": "FLOAT",
            }
            blocks_known = self._recorder.recipe.described | IS_MIX[kind]
            if not self._recorder.recipe.described:
                texts = dict.fromkeys(texts, "N/A")
            self._recorder.tables.add(
                "COMPUTE_TASK_INFO",
                len(operators),
                name=np.array(self._names, object)[operators["name"]],
                **texts,
                blockNum=np.where(blocks_known, operators["block_num"], 0),
                mixBlockNum=operators["block_num"] * operators["ratio"],
                **self._recorder.task_columns(placed, row),
            )


def _quoted(shape: Int64) -> NDArray[Any]:
    return np.array([f'"{height},{width}"' for height, width in shape.tolist()], object)
