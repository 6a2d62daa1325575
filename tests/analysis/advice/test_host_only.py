"""Findings in recordings without a device, each with a twin that has none."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.analysis.advice.faulty_runs import MS, FaultyRun, advice, findings_by_kind, saving_ns
from unified_prof.base.columns import API_MARK, API_OPERATION, API_PYTHON

ATTENTION = ("aten::matmul", "aten::div", "aten::softmax", "aten::matmul")


@pytest.mark.parametrize("operations", [ATTENTION, ("aten::matmul", "aten::gelu") * 2])
def test_attention_costs_softmax_and_scaling(tmp_path: Path, operations: tuple[str, ...]) -> None:
    with FaultyRun(tmp_path / "run.db") as run:
        end = 0
        for step in range(5):
            # Another program takes the processor during one operation of one step.
            lengths = [2 * MS, (12 if step == 3 else 2) * MS, 2 * MS, 2 * MS]
            run.call(end, end + sum(lengths), f"ProfilerStep#{step}")
            for name, length in zip(operations, lengths, strict=True):
                run.call(end, end + length, name)
                end += length
    found = findings_by_kind(tmp_path / "run.db")
    assert ("unfused_chain" in found) == (operations == ATTENTION)
    if operations == ATTENTION:
        finding = found["unfused_chain"]
        assert saving_ns(finding) == pytest.approx(
            0.5 * (4 * 8 + 10) / 4 * MS, rel=0.01
        )  # of the mean step
        assert "with_stack" in finding.advice


@pytest.mark.parametrize(
    ("frame", "place"),
    [
        ("/home/me/log.py(7): write", "around write at /home/me/log.py:7 before aten::operation3"),
        (
            "/home/me/log.py(7): write;<built-in function collect>",
            "around gc.collect() in write at /home/me/log.py:7 before aten::operation3",
        ),
        (None, "before aten::operation3"),
        ("## loss ##", "before aten::operation3 in ## loss ##"),
        ("ShrinkBackward", "before aten::operation3 in ShrinkBackward"),
        ("MulBackward0", None),
        ("CompiledFunctionBackward", None),
    ],
)
@pytest.mark.parametrize("regular", [True, False])
def test_gaps_at_the_same_place_of_each_step_are_time_between_operations(
    tmp_path: Path, regular: bool, frame: str | None, place: str | None
) -> None:
    """Gaps at other places in each step are those of other programs, those in a kernel are work."""
    regular &= place is not None
    with FaultyRun(tmp_path / "run.db") as run:
        for step in range(6):
            begin = step * 10 * MS
            run.call(begin, begin + 10 * MS, f"ProfilerStep#{step}")
            gap = 3 if regular else step
            start = begin
            for at in range(7):
                if at == gap:
                    for one in () if frame is None else frame.split(";"):
                        is_node = one.endswith(("Backward", "0"))
                        kind = API_OPERATION if is_node else API_MARK
                        kind = API_PYTHON if ".py" in (frame or "") else kind
                        run.call(start, start + 3 * MS, one, kind=kind)
                    start += 3 * MS
                name = f"aten::operation{at}"
                if at == gap and frame is None:
                    name = f"autograd::engine::evaluate_function: {name}"
                run.call(start, start + MS, name)
                start += MS
    found = findings_by_kind(tmp_path / "run.db")
    assert ("time_between_operations" in found) == regular
    if regular:
        finding = found["time_between_operations"]
        assert saving_ns(finding) == pytest.approx(3 * MS, rel=0.02)
        assert f"mostly {place}; saves" in finding.text
        is_function = frame is not None and ".py" in frame
        name = f"{place}".replace(" at /home/me/log.py:7", "").removeprefix("around ")
        line = "/home/me/log.py:7" if is_function else None
        row = finding.evidence[0]
        assert (row["name"], row.get("line"), row["count"]) == (name, line, 5)  # steps
        assert row["total_ns"] == pytest.approx(5 * 3 * MS, rel=0.02)


TABLE = "1000,8"


@pytest.mark.parametrize(
    ("shape", "types", "indices", "weight", "expected"),
    [
        ("64,64;64,64", "float;float", 20, None, {"dense_embedding": 7 * 0.98}),
        ("64,64;64,64", "float;float", 20, "frozen", {}),
        ("64,64;64,64", "float;float", 400, None, {}),  # most rows are used
        ("64,64;64,64", "float;float", 20, TABLE, {}),  # the table is the weight of a product, too
        ("64,64;64,64", "double;double", 600, None, {"double_precision": 0.5 * 9}),
        ("64,64;;64,64", "float;double;float", 600, None, {}),  # a scalar
    ],
)
def test_inputs_show_dense_gradients_and_double_precision(
    tmp_path: Path,
    shape: str,
    types: str,
    indices: int,
    weight: str | None,
    expected: dict[str, float],
) -> None:
    frozen = weight == "frozen"
    with FaultyRun(tmp_path / "run.db") as run:
        for step in range(5):
            begin = step * 20 * MS
            run.call(begin, begin + 20 * MS, f"ProfilerStep#{step}")
            run.call(begin + MS, begin + 10 * MS, "aten::mm", inputs=(shape, types))
            if weight == TABLE:
                run.call(begin, begin + MS, "aten::linear", inputs=(f"9,8;{weight}", types))
            lookup, row = (f"{TABLE};{indices}", "float;long int"), begin + 10 * MS
            run.call(row, row + (3 if frozen else 1) * MS, "aten::embedding", inputs=lookup)
            run.call(row + MS, row + 3 * MS, "aten::embedding_dense_backward")
            run.call(row + 3 * MS, row + 10 * MS, "Optimizer.step#SGD.step", kind=API_MARK)
            updated = "99,9" if frozen else TABLE
            run.call(row + 3 * MS, row + 10 * MS, "aten::add_", inputs=(updated, "float"))
    found = findings_by_kind(tmp_path / "run.db")
    kinds = "dense_embedding", "double_precision"
    assert {kind: saving_ns(found[kind]) / MS for kind in kinds if kind in found} == pytest.approx(
        expected, rel=0.01
    )


def test_gaps_with_a_cause_have_other_findings(tmp_path: Path) -> None:
    loader = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    with FaultyRun(tmp_path / "run.db") as run:
        for step in range(5):
            begin = step * 12 * MS
            run.call(begin, begin + 12 * MS, f"ProfilerStep#{step}")
            run.call(begin, begin + 3 * MS, loader, kind=API_MARK)
            run.call(begin + 3 * MS, begin + 7 * MS, "aten::linear")
            run.call(begin + 7 * MS, begin + 10 * MS, "Optimizer.step#SGD.step", kind=API_MARK)
            start = begin + 10 * MS
            run.row("GC_RECORD", startNs=start, endNs=start + 2 * MS, globalTid=1)
    assert findings_by_kind(tmp_path / "run.db").keys() == {"input_wait", "garbage_collection"}


@pytest.mark.parametrize(
    ("around", "sure"),
    [
        ("torch/utils/checkpoint.py(1500): recompute_fn", "certain"),
        ("autograd::engine::evaluate_function: AddmmBackward0", "likely"),
        ("model.py(4): forward", None),
    ],
)
def test_recomputed_operations_cost_time(tmp_path: Path, around: str, sure: str | None) -> None:
    with FaultyRun(tmp_path / "run.db") as run:
        for step in range(5):
            begin = step * 10 * MS
            run.call(begin, begin + 10 * MS, f"ProfilerStep#{step}")
            run.call(begin, begin + 6 * MS, "aten::linear")
            kind = API_PYTHON if ".py" in around else API_OPERATION
            run.call(begin + 6 * MS, begin + 10 * MS, around, kind=kind)
            run.call(begin + 6 * MS, begin + 10 * MS, "aten::gelu")
    found = findings_by_kind(tmp_path / "run.db").get("recomputation")
    assert (found and (found.sure, saving_ns(found))) == (sure and (sure, 4 * MS))


@pytest.mark.parametrize(
    ("operation", "call", "ranges", "kind"),
    [
        ("aten::mm", "cudaLaunchKernel", 0, "gpu_not_recorded"),
        ("aten::record_stream", None, 0, "gpu_not_recorded"),
        ("aten::cudnn_is_acceptable", None, 0, None),  # recorded on CPUs, too
        ("nccl:_all_gather_base", None, 0, "gpu_not_recorded"),
        ("cuda settings", None, 0, None),  # a range of the user
        ("aten::mm", "launch", 0, None),
        ("aten::mm", "cudaLaunchKernel", 9, None),
        ("aten::mm", "cudaLaunchKernel", 10, "kernel_replay"),
    ],
)
def test_recordings_with_wrong_times_are_named_first(
    tmp_path: Path, operation: str, call: str | None, ranges: int, kind: str | None
) -> None:
    with FaultyRun(tmp_path / "run.db") as run:
        for begin in run.steps(6, 10 * MS):
            run.call(begin, begin + 4 * MS, operation)
            if call is not None:
                run.api(begin + MS, begin + 2 * MS, call)
        text = {"category": run.text("cuda_profiler_range"), "name": run.text("kernel")}
        for at in range(ranges):
            run.row("UPROF_TRACE_EVENTS", startNs=at, endNs=at + 1, process="", thread="", **text)
    first = next(iter(advice(tmp_path / "run.db").findings), None)
    assert (first and first.kind) == (kind or "time_between_operations")
