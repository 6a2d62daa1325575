"""Time by module if modules are recorded as frames of call chains."""

from pathlib import Path
from typing import Any

import pytest

from tests.analysis.builders import Device
from tests.analysis.test_skyline import breakdown_of, by_name, summary_of
from tests.decoders.kineto.builders import call, complete, kernel, operation, write
from unified_prof.compare import runs
from unified_prof.errors import UsageError
from unified_prof.explain.api import open_analyses
from unified_prof.explain.skyline import trees
from unified_prof.pipeline.convert import convert

ENGINE = "autograd::engine::evaluate_function: "
UNATTRIBUTED = "(not attributed to a module)"
OUTSIDE = "(outside any module)"


def _chained(path: Path) -> Path:
    """Write a step with modules as frames of call chains, as `uprof convert` does."""
    with Device(path) as device:
        linear = ("nn.Module: Linear_0", "/w/net.py(4): forward", "nn.Module: Net_0")
        device.chain(1, "<built-in linear>", *linear, "/w/train.py(9): step")
        device.chain(2, "/w/net.py(5): forward", "nn.Module: Net_0", "/w/train.py(9): step")
        device.chain(3, "/w/train.py(11): step")
        device.call(0, 100, "aten::linear", chain=1, sequence=5)
        device.call(10, 90, "aten::addmm", chain=1, sequence=5, launches=1)
        device.call(100, 200, "aten::relu", chain=2, sequence=6, launches=2)
        device.call(200, 300, "aten::mse_loss", chain=3, sequence=7, launches=3)
        # Backward runs on a thread without recorded frames.
        device.call(400, 500, ENGINE + "AddmmBackward0", thread=2)
        device.call(410, 490, "AddmmBackward0", thread=2, sequence=5, forward_thread=1, launches=4)
        device.call(500, 600, ENGINE + "torch::autograd::AccumulateGrad", thread=2)
        device.call(510, 590, "aten::add_", thread=2, launches=5)
        # The importer gave this node the chain of a forward operation that was not recorded.
        device.call(600, 700, ENGINE + "TanhBackward0", thread=2, chain=1)
        node: dict[str, Any] = {"sequence": 99, "forward_thread": 1, "launches": 6}
        device.call(610, 690, "TanhBackward0", thread=2, chain=1, **node)
        device.call(700, 800, "aten::no_stack", thread=3, launches=7)
        for number in range(1, 9):
            device.task(
                1000 * number, 1000 * number + 10 * number, connection=number, kernel=("k", "K")
            )
    return path


def test_forward_and_backward_time_counts_for_the_module_in_the_call_chain(tmp_path: Path) -> None:
    path = _chained(tmp_path / "msprof_1.db")
    rows = by_name(breakdown_of(path, "module"))
    found = {name: (row.forward_ns, row.backward_ns) for name, row in rows.items()}
    assert found == {
        "Net_0.Linear_0": (10, 40 + 60),
        "Net_0": (20, None),
        OUTSIDE: (30, None),
        # Gradient accumulation, an operation without a stack, and a task without a launch.
        UNATTRIBUTED: (70, 50),
    }
    assert rows[UNATTRIBUTED].total_ns == 50 + 70 + 80
    assert (rows["Net_0.Linear_0"].detail, rows[UNATTRIBUTED].detail) == ("Linear", None)
    assert sum(row.total_ns or 0 for row in rows.values()) == summary_of(path).totals.total_ns


def test_modules_of_call_chains_appear_in_comparisons_and_trees(tmp_path: Path) -> None:
    path = _chained(tmp_path / "msprof_1.db")
    modules = {place.module for place in runs.load([path]).operations.places}
    assert modules == {"Net_0.Linear_0", "Net_0", None}
    with open_analyses(path) as (analysis,):
        (tree,) = [one for one in trees(analysis) if one.kind == "module"]
    assert {"Linear_0", "Net_0", UNATTRIBUTED, OUTSIDE} <= {node.name for node in tree.nodes}


def test_module_range_has_priority_over_the_call_chain(tmp_path: Path) -> None:
    path = tmp_path / "msprof_1.db"
    with Device(path) as device:
        device.chain(1, "nn.Module: FromChain_0")
        device.call(0, 100, "nn.Module: Around_0", kind=50003)
        device.call(10, 90, "aten::a", chain=1, launches=1)
        device.call(200, 300, "aten::b", chain=1, launches=2)
        device.call(400, 500, "aten::c", launches=3)
        for number in (1, 2, 3):
            device.task(1000 * number, 1000 * number + 10, connection=number, kernel=("k", "K"))
    assert set(by_name(breakdown_of(path, "module"))) == {"Around_0", "FromChain_0", OUTSIDE}


def test_module_breakdown_is_refused_if_chains_contain_no_module(tmp_path: Path) -> None:
    path = tmp_path / "msprof_1.db"
    with Device(path) as device:
        device.chain(1, "/w/train.py(9): step")
        device.call(0, 100, "aten::a", chain=1, launches=1)
        device.call(200, 300, "aten::b", launches=2)
        device.task(100, 200, connection=1, kernel=("k", "K"))
        device.task(300, 400, connection=2, kernel=("k", "K"))
    with pytest.raises(UsageError, match=r"no nn\.Module was recorded"):
        breakdown_of(path, "module")


def test_imported_trace_has_forward_and_backward_time_by_module(tmp_path: Path) -> None:
    forward = {"args": {"External id": 1, "Sequence number": 3, "Fwd thread id": 0}}
    backward = {"args": {"External id": 2, "Sequence number": 3, "Fwd thread id": 1}, "tid": 7}
    trace = write(
        tmp_path / "trace.json",
        [
            complete("python_function", "train.py(3): <module>", 0, 1000),
            complete("python_function", "nn.Module: Net_0", 10, 400),
            complete("python_function", "nn.Module: Linear_0", 20, 300),
            operation("aten::linear", 30, 200, **forward),
            call(40, 5, 1),
            operation(ENGINE + "AddmmBackward0", 500, 100, tid=7),
            operation("AddmmBackward0", 510, 80, **backward),
            call(520, 5, 2, tid=7),
            kernel(600, 50, 1),
            kernel(700, 70, 2),
        ],
    )
    convert(trace, tmp_path / "trace.db")
    (row,) = breakdown_of(tmp_path / "trace.db", "module").rows
    assert (row.name, row.forward_ns, row.backward_ns) == ("Net_0.Linear_0", 50_000, 70_000)


@pytest.mark.slow
def test_real_traces_with_stacks_have_time_by_module(shared: Path, tmp_path: Path) -> None:
    for name, module in (
        ("h100_vit", "ViTModel_0.ViTEmbeddings_0.ViTPatchEmbeddings_0.Conv2d_0"),
        ("mi300_resnet_act_checkpoint", "DistributedDataParallel_0.ResNet_0.BatchNorm2d_0"),
    ):
        trace = shared / "samples" / "kineto" / f"{name}.json.gz"
        convert(trace, tmp_path / f"{name}.db")
        rows = by_name(breakdown_of(tmp_path / f"{name}.db", "module"))
        assert rows[module].total_ns
        total = summary_of(tmp_path / f"{name}.db").totals.total_ns
        assert sum(row.total_ns or 0 for row in rows.values()) == total
