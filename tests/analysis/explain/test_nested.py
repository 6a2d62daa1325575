"""Operations at every depth: each in itself and with all that it called, also by its inputs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.analysis.builders import Device, training_step
from unified_prof.errors import UsageError
from unified_prof.explain.api import open_analyses
from unified_prof.recording.model import Breakdown, Row


def breakdown(path: Path, by: str) -> Breakdown:
    with open_analyses(path) as (analysis,):
        return analysis.breakdown(by)


def rows(path: Path, by: str) -> dict[str, Row]:
    return {row.name: row for row in breakdown(path, by).rows}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "msprof_20260101000000.db"


def test_each_call_stands_for_itself(path: Path) -> None:
    training_step(path)
    found = rows(path, "self")
    assert found["aten::linear"].total_ns == 0
    assert found["aten::linear"].extra == {
        "with_callees_ns": 100,
        "launches": 0,
        "self_host_ns": 870 - 760,
        "host_ns": 870,
    }
    addmm = found["aten::addmm"]
    assert (addmm.count, addmm.total_ns, addmm.extra["launches"]) == (1, 100, 1)
    # Backward work is of the call that launched it, not of the forward operation.
    assert found["aten::mm"].total_ns == 150
    assert found["autograd::engine::evaluate_function: AddmmBackward0"].extra == {
        "with_callees_ns": 150,
        "launches": 0,
        "self_host_ns": 500 - 480,
        "host_ns": 500,
    }
    assert not {"ProfilerStep#4", "nn.Module: Net_0"} & set(found)


def test_the_rows_are_all_of_the_devices_work(path: Path) -> None:
    training_step(path)
    whole = breakdown(path, "kernel").total_ns
    assert breakdown(path, "self").total_ns == whole
    rest = rows(path, "self")["(launched by no operation)"]
    assert (rest.count, rest.total_ns) == (2, 200 + 40)


def test_only_child_with_the_name_of_its_parent_is_not_counted(path: Path) -> None:
    with Device(path) as device:
        device.call(0, 100, "aten::sum")
        device.call(10, 90, "aten::sum", launches=1)
        device.call(20, 60, "aten::empty")
        device.call(200, 300, "aten::sum", launches=2)
        device.task(400, 450, connection=1, kernel=("k", "K"))
        device.task(450, 470, connection=2, kernel=("k", "K"))
    row = rows(path, "self")["aten::sum"]
    assert (row.count, row.total_ns) == (2, 70)
    assert (row.extra["with_callees_ns"], row.extra["launches"]) == (70, 2)
    assert (row.extra["host_ns"], row.extra["self_host_ns"]) == (200, 200 - 40)


def test_calls_of_cann_within_an_operation_are_part_of_it(path: Path) -> None:
    with Device(path) as device:
        device.call(0, 100, "aten::_convolution")
        device.call(10, 90, "Conv2D", launches=1)
        device.call(120, 125, "detach")
        device.task(400, 450, connection=1, kernel=("k", "K"))
    found = rows(path, "self")
    assert set(found) == {"aten::_convolution", "detach"}
    assert found["aten::_convolution"].total_ns == 50


def test_inputs_tell_calls_of_one_operation_apart(path: Path) -> None:
    shapes = "64,128;\r\n128,8;\r\n;\r\n", "c10::BFloat16;\r\nfloat;\r\nScalar;\r\n"
    with Device(path) as device:
        device.call(0, 100, "aten::mm", launches=1, inputs=shapes)
        device.call(100, 200, "aten::mm", launches=2, inputs=shapes[::-1])  # early torch_npu
        device.call(200, 300, "aten::mm", launches=3, inputs=("", "float"))
        device.call(300, 400, "aten::cat", launches=4, inputs=('"4,8|2,8;"', '"TensorList;Scalar"'))
        device.call(400, 500, "aten::empty")
        for number in range(4):
            start = 1000 + 100 * number
            device.task(start, start + 50 + number, connection=number + 1, kernel=("k", "K"))
    found = {(row.name, row.detail): row for row in breakdown(path, "shape").rows}
    assert {key: (row.count, row.total_ns) for key, row in found.items()} == {
        ("aten::mm", "BFloat16[64,128], float[128,8]"): (2, 50 + 51),
        ("aten::mm", "float[]"): (1, 52),
        ("aten::cat", "TensorList[4,8|2,8]"): (1, 53),
        ("aten::empty", None): (1, 0),
    }


def test_without_shapes_it_says_what_would_have_recorded_them(path: Path) -> None:
    training_step(path)
    with pytest.raises(UsageError, match="record_shapes"):
        breakdown(path, "shape")


_PROGRAM = """
import json, sys, torch
from torch.profiler import ProfilerActivity, profile
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
    for _ in range(3):
        model(torch.randn(16, 64)).sum().backward()
profiler.export_chrome_trace(sys.argv[1])
told = {one.key: [one.count, one.self_cpu_time_total, one.cpu_time_total]
        for one in profiler.key_averages()}
json.dump(told, open(sys.argv[2], "w"))
"""


@pytest.mark.slow
def test_figures_are_those_of_torchs_own_table(tmp_path: Path) -> None:
    trace, told = tmp_path / "trace.json", tmp_path / "told.json"
    run(sys.executable, "-c", _PROGRAM, trace, told)
    run(sys.executable, "-m", "unified_prof", "import", trace, "-o", tmp_path / "report")
    expected: dict[str, Any] = json.loads(told.read_text(encoding="utf-8"))
    found = {
        name: [row.count, row.total_ns, row.extra["host_ns"]]
        for name, row in rows(tmp_path / "report", "self").items()
    }
    assert found == {
        name: [count, round(own * 1000), round(whole * 1000)]
        for name, (count, own, whole) in expected.items()
    }


def run(*arguments: Any) -> None:
    subprocess.run([str(one) for one in arguments], check=True, env=os.environ, capture_output=True)


@pytest.mark.parametrize(
    "checkpoint", ["CheckpointFunctionBackward", "/x/torch/utils/checkpoint.py(15): recompute_fn"]
)
def test_what_a_checkpoint_makes_again_is_told(path: Path, checkpoint: str) -> None:
    engine = "autograd::engine::evaluate_function: MmBackward0"
    kind = 50003 if ".py" in checkpoint else 50001
    with Device(path) as device:
        device.call(0, 90, "aten::mm", launches=1)
        device.call(1000, 1900, engine)
        device.call(1100, 1800, checkpoint, kind=kind)
        device.call(1110, 1190, "aten::mm", launches=2)
        # A checkpoint of the reentrant kind runs its own backward pass.
        device.call(1200, 1700, engine)
        device.call(1300, 1400, "aten::mm", launches=3)
        for number in (1, 2, 3):
            start = 2000 * number
            device.task(start, start + 10**number, connection=number, kernel=("mm", "K"))
    row = rows(path, "self")["aten::mm"]
    assert (row.total_ns, row.extra["recomputed_ns"]) == (1110, 100)


def test_a_call_chain_tells_of_a_checkpoint_too(path: Path) -> None:
    with Device(path) as device:
        device.chain(7, "/w/net.py(9): f", "torch/utils/checkpoint.py(1500): recompute_fn")
        device.chain(8, "/w/net.py(9): f", "torch/utils/checkpoint.py(343): checkpoint")
        for number, chain in enumerate((8, 7, 7), 1):
            at = 100 * number
            device.call(at, at + 90, "aten::mm", launches=number, chain=chain)
            device.task(at, at + 10**number, connection=number, kernel=("mm", "K"))
    assert rows(path, "self")["aten::mm"].extra["recomputed_ns"] == 1100


def test_without_checkpoints_nothing_is_said_of_them(path: Path) -> None:
    training_step(path)
    assert "recomputed_ns" not in rows(path, "self")["aten::addmm"].extra
