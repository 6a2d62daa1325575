"""Self and total time of operations at every depth, by name and by input shapes."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.analysis.builders import Device
from unified_prof.explain.api import open_analyses
from unified_prof.recording.model import Breakdown, Row

pytestmark = pytest.mark.fresh_interpreter


def breakdown(path: Path, by: str) -> Breakdown:
    with open_analyses(path) as (analysis,):
        return analysis.breakdown(by)


def rows(path: Path, by: str) -> dict[str, Row]:
    return {row.name: row for row in breakdown(path, by).rows}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "msprof_20260101000000.db"


def test_cann_calls_within_an_operation_belong_to_it(path: Path) -> None:
    with Device(path) as device:
        device.call(0, 100, "aten::_convolution")
        device.call(10, 90, "Conv2D", launches=1)
        device.call(120, 125, "detach")
        device.task(400, 450, connection=1, kernel=("k", "K"))
    found = rows(path, "self")
    assert set(found) == {"aten::_convolution", "detach"}
    assert found["aten::_convolution"].total_ns == 50


def test_shape_breakdown_separates_calls_by_input_shapes_and_types(path: Path) -> None:
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


_PROGRAM = """
import json, sys, torch
from torch.profiler import ProfilerActivity, profile
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
    for _ in range(3):
        model(torch.randn(16, 64)).sum().backward()
profiler.export_chrome_trace(sys.argv[1])
averages = {one.key: [one.count, one.self_cpu_time_total, one.cpu_time_total]
        for one in profiler.key_averages()}
json.dump(averages, open(sys.argv[2], "w"))
"""


@pytest.mark.slow
def test_counts_and_times_equal_key_averages_of_torch(tmp_path: Path) -> None:
    trace, averages = tmp_path / "trace.json", tmp_path / "averages.json"
    run(sys.executable, "-c", _PROGRAM, trace, averages)
    run(sys.executable, "-m", "unified_prof", "import", trace, "-o", tmp_path / "report")
    expected: dict[str, Any] = json.loads(averages.read_text(encoding="utf-8"))
    found = {
        name: [row.count, row.total_ns, row.extra["host_ns"]]
        for name, row in rows(tmp_path / "report", "self").items()
    }
    assert found == {
        name: [count, round(self_us * 1000), round(total_us * 1000)]
        for name, (count, self_us, total_us) in expected.items()
    }


def run(*arguments: Any) -> None:
    subprocess.run([str(one) for one in arguments], check=True, env=os.environ, capture_output=True)


@pytest.mark.parametrize(
    "checkpoint", ["CheckpointFunctionBackward", "/x/torch/utils/checkpoint.py(15): recompute_fn"]
)
def test_time_recomputed_by_a_checkpoint_is_reported(path: Path, checkpoint: str) -> None:
    engine = "autograd::engine::evaluate_function: MmBackward0"
    kind = 50003 if ".py" in checkpoint else 50001
    with Device(path) as device:
        device.call(0, 90, "aten::mm", launches=1)
        device.call(1000, 1900, engine)
        device.call(1100, 1800, checkpoint, kind=kind)
        device.call(1110, 1190, "aten::mm", launches=2)
        # A reentrant checkpoint runs a backward pass within the outer one.
        device.call(1200, 1700, engine)
        device.call(1300, 1400, "aten::mm", launches=3)
        for number in (1, 2, 3):
            start = 2000 * number
            device.task(start, start + 10**number, connection=number, kernel=("mm", "K"))
    row = rows(path, "self")["aten::mm"]
    assert (row.total_ns, row.extra["recomputed_ns"]) == (1110, 100)


def test_checkpoint_is_recognized_in_the_call_chain(path: Path) -> None:
    with Device(path) as device:
        device.chain(7, "/w/net.py(9): f", "torch/utils/checkpoint.py(1500): recompute_fn")
        device.chain(8, "/w/net.py(9): f", "torch/utils/checkpoint.py(343): checkpoint")
        for number, chain in enumerate((8, 7, 7), 1):
            at = 100 * number
            device.call(at, at + 90, "aten::mm", launches=number, chain=chain)
            device.task(at, at + 10**number, connection=number, kernel=("mm", "K"))
    assert rows(path, "self")["aten::mm"].extra["recomputed_ns"] == 1100
