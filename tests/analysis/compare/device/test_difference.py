"""Comparison of device recordings: counterparts are paired and no time is lost."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import unified_prof
from tests.analysis.compare.device import recordings
from tests.analysis.compare.device.recordings import GPU, NPU, Op, npu_recording, recording
from unified_prof.compare import device_leaves
from unified_prof.compare.device_diff import diff_recordings
from unified_prof.compare.device_side import PARTS
from unified_prof.compare.device_tables import DeviceDifference, Line
from unified_prof.compare.diff import Difference
from unified_prof.errors import UsageError
from unified_prof.recording import tasks


def compared(base: Path, new: Path) -> DeviceDifference:
    found = diff_recordings([base], [new])
    assert found is not None
    check_sums(found)
    return found


def check_sums(found: DeviceDifference) -> None:
    """Check that every table adds up to the work of both sides, and step parts to the steps."""
    for rows in (found.classes, found.operations, found.modules, found.lines, found.kernels):
        totals = [
            sum(amount.total_ns for row in rows if (amount := getattr(row, side)) is not None)
            for side in ("base", "new")
        ]
        assert totals == [found.base.work_ns, found.new.work_ns]
    for row in found.operations:
        for below in (found.kernels_of(row), row.shapes):
            for side in ("base", "new"):
                whole = getattr(row, side)
                if below and whole is not None:
                    parts = [getattr(one, side) for one in below]
                    assert sum(one.total_ns for one in parts if one) == whole.total_ns
    for side_found in (found.base, found.new):
        assert set(side_found.parts_ns) == set(PARTS)
        assert sum(side_found.parts_ns.values()) == side_found.window_ns


def by_name(found: DeviceDifference) -> dict[tuple[str, str], Line]:
    return {(row.class_name, row.name): row for row in found.operations}


def times(found: DeviceDifference, row: Line) -> tuple[float | None, float | None]:
    """Return the time per step of a row on each side."""
    return (
        None if row.base is None else found.base.per_share(row.base.total_ns),
        None if row.new is None else found.new.per_share(row.new.total_ns),
    )


@pytest.fixture
def gpu_and_npu(tmp_path: Path) -> DeviceDifference:
    return compared(recording(tmp_path / "gpu.db"), npu_recording(tmp_path / "npu.db"))


def test_operation_of_two_vendors_is_one_row(gpu_and_npu: DeviceDifference) -> None:
    rows = by_name(gpu_and_npu)
    linear = rows["matmul", "linear"]
    assert times(gpu_and_npu, linear) == (200, 300)
    assert gpu_and_npu.ratio(linear) == 1.5
    assert linear.base is not None
    assert (linear.base.calls, linear.base.runs) == (4, 4)
    assert (linear.base_name, linear.new_name) == ("aten::linear", "aten::linear")


def test_synonyms_of_an_operation_are_one_row(gpu_and_npu: DeviceDifference) -> None:
    attention = by_name(gpu_and_npu)["attention", "scaled_dot_product_attention"]
    assert times(gpu_and_npu, attention) == (300, 700)
    assert attention.base_name == "aten::scaled_dot_product_attention"
    assert attention.new_name == "npu::npu_fusion_attention"


def test_differently_named_operations_are_paired_by_module(gpu_and_npu: DeviceDifference) -> None:
    found = by_name(gpu_and_npu)["element-wise", "silu -> gated"]
    assert times(gpu_and_npu, found) == (30, 50)
    assert found.modules == ("Glu",)


def test_operations_with_different_names_are_paired_by_the_kernel_that_they_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An eager and a compiled run without shapes and common modules."""
    monkeypatch.setattr(recordings, "INPUTS", ("", ""))
    product = [("nvjet_tst_64x8", "aten::mm", 120)]
    eager = [Op("aten::linear", product, "Eager_0", 6)]
    compiled = [Op("extern_kernels::mm", product, "Compiled_0", 6)]
    fused = Op("fused_gelu", [("triton_poi_fused_gelu_0", "triton", 30)], "Compiled_0")
    found = compared(
        recording(tmp_path / "a.db", eager), recording(tmp_path / "b.db", [*compiled, fused])
    )
    assert times(found, by_name(found)["matmul", "linear -> mm"]) == (720, 720)
    assert [row.name for row in found.operations if row.side == "new"] == ["fused_gelu"]


def test_operation_of_one_side_only_is_a_row_of_that_side(gpu_and_npu: DeviceDifference) -> None:
    one_sided = {
        (row.class_name, row.name, row.side) for row in gpu_and_npu.operations if row.side != "both"
    }
    assert one_sided == {("cast and format", "linear", "new")}
    casts = by_name(gpu_and_npu)["cast and format", "linear"]
    assert [kernel.name for kernel in gpu_and_npu.kernels_of(casts)] == ["trans_TransData_1"]
    assert gpu_and_npu.ratio(casts) is None
    assert gpu_and_npu.change_ns(casts) == 120


def test_collectives_are_one_row_by_kind_and_group(gpu_and_npu: DeviceDifference) -> None:
    rows = [row for row in gpu_and_npu.operations if row.class_name == "collectives"]
    assert [(row.name, row.side) for row in rows] == [("all_reduce (dp)", "both")]
    assert times(gpu_and_npu, rows[0]) == (200, 200)
    assert rows[0].base is not None
    assert rows[0].base.calls == 2


@pytest.mark.parametrize(("reduces_ns", "warns"), [(260, True), (210, False)])
def test_slower_collectives_of_one_rank_may_be_waits(
    tmp_path: Path, reduces_ns: int, warns: bool
) -> None:
    base = recording(tmp_path / "a.db")
    found = compared(base, recording(tmp_path / "b.db", reduces_ns=reduces_ns))
    assert any("wait for a slower rank" in warning for warning in found.warnings) == warns


def test_rows_are_sorted_by_increase_of_time(gpu_and_npu: DeviceDifference) -> None:
    changes = [gpu_and_npu.change_ns(row) for row in gpu_and_npu.operations]
    assert changes == sorted(changes, reverse=True)
    assert gpu_and_npu.operations[0].name == "scaled_dot_product_attention"


def test_devices_are_named_and_different(gpu_and_npu: DeviceDifference) -> None:
    assert (gpu_and_npu.base.devices, gpu_and_npu.new.devices) == (
        ("NVIDIA H100",),
        ("Ascend910B",),
    )
    assert not gpu_and_npu.same_devices


def test_peak_of_matmuls_is_that_of_their_type(tmp_path: Path) -> None:
    base = recording(tmp_path / "a.db", model="NVIDIA H200")
    new = recording(tmp_path / "b.db", model="NVIDIA A100-SXM4-80GB")
    peaks = compared(base, new).allowed["matmul"]
    assert (peaks.base.name, peaks.base.rate, peaks.new.rate) == ("bf16", 989e12, 312e12)


def test_recordings_with_different_numbers_of_steps_are_compared_per_step(tmp_path: Path) -> None:
    found = compared(recording(tmp_path / "a.db", steps=2), recording(tmp_path / "b.db", steps=7))
    assert (found.base.steps, found.new.steps) == (2, 7)
    assert {found.change_ns(row) for row in found.operations} == {0.0}
    assert all(found.ratio(row) == 1 for row in found.operations)
    assert found.same_devices
    assert len(found.left_out) == 2


def test_recordings_without_steps_are_compared_as_a_whole_with_a_warning(tmp_path: Path) -> None:
    base = recording(tmp_path / "a.db", steps=2, with_steps=False, warm_up_ns=0)
    new = recording(tmp_path / "b.db", steps=6, with_steps=False, warm_up_ns=0)
    found = compared(base, new)
    (warning,) = found.warnings
    assert "have no steps" in warning
    assert "occur 3 times as often" in warning
    assert found.base.steps is None
    stepped = compared(recording(tmp_path / "c.db", steps=2), new)
    assert "per step" in stepped.warnings[0]
    assert "occur 6 times as often" in stepped.warnings[0]
    operations = [Op(f"my::{number}", [("k", "my::k", 10)]) for number in range(9)]
    other = recording(tmp_path / "d.db", operations, with_steps=False, warm_up_ns=0)
    assert "most of their operations differ" in compared(base, other).warnings[0]


def test_side_without_host_rows_is_compared_by_class_and_kernel_kind(tmp_path: Path) -> None:
    base = recording(tmp_path / "a.db", NPU, model="Ascend910B")
    bare = npu_recording(tmp_path / "b.db", host=False, with_steps=False, warm_up_ns=0)
    found = compared(base, bare)
    assert any("new has no framework operations" in warning for warning in found.warnings)
    names = {row.name for row in found.operations if row.side == "both"}
    assert {"matmul", "scaled_dot_product_attention", "gelu", "layer_norm"} <= names
    gpu = compared(recording(tmp_path / "c.db", host=False, warm_up_ns=0), bare)
    assert {row.name: row.side for row in gpu.classes}["matmul"] == "both"
    assert any("neither side has framework" in warning for warning in gpu.warnings)


@pytest.mark.slow
def test_kernels_without_operation_are_one_row_per_class(tmp_path: Path) -> None:
    graph = [Op("", [(f"Cijk_gemm_{n}", f"Cijk_gemm_{n}", 10)]) for n in range(5)]
    base = recording(tmp_path / "a.db", graph, model="AMD MI300X", host=False)
    new = recording(tmp_path / "b.db", graph, host=False)
    rows = by_name(compared(base, new))
    assert rows["matmul", "(kernels of no operation)"].side == "both"
    same = recording(tmp_path / "c.db", graph, host=False)
    assert ("matmul", "Cijk_gemm_0") in by_name(compared(new, same))


def test_recording_with_four_devices_is_compared_per_device(tmp_path: Path) -> None:
    one = recording(tmp_path / "a.db", devices=1, collective=None)
    four = recording(tmp_path / "b.db", devices=4, collective=None)
    found = compared(one, four)
    assert (found.base.device_count, found.new.device_count) == (1, 4)
    assert {found.change_ns(row) for row in found.operations} == {0.0}


@pytest.mark.slow
def test_ranks_of_a_directory_are_one_side(tmp_path: Path) -> None:
    for side in ("base", "new"):
        (tmp_path / side).mkdir()
    for rank in range(3):
        recording(tmp_path / "base" / f"rank{rank}.db", steps=2)
    for rank in range(2):
        npu_recording(tmp_path / "new" / f"rank{rank}.db", steps=3)
    found = compared(tmp_path / "base", tmp_path / "new")
    assert (found.base.recordings, found.new.recordings) == (3, 2)
    assert (found.base.steps, found.new.steps) == (6, 6)
    assert times(found, by_name(found)["matmul", "linear"]) == (200, 300)


@pytest.mark.slow
def test_ranks_without_steps_are_left_out_if_others_have_steps(tmp_path: Path) -> None:
    for side in ("base", "new"):
        (tmp_path / side).mkdir()
        recording(tmp_path / side / "rank0.db")
    recording(tmp_path / "new" / "rank1.db", with_steps=False)
    found = compared(tmp_path / "base", tmp_path / "new")
    assert any("have no steps and are left out" in warning for warning in found.warnings)
    assert {found.change_ns(row) for row in found.operations} == {0.0}


def test_recording_without_device_tasks_has_no_device_difference(tmp_path: Path) -> None:
    empty = recording(tmp_path / "a.db", (), collective=None, warm_up_ns=0)
    assert diff_recordings([empty], [recording(tmp_path / "b.db")]) is None
    assert isinstance(unified_prof.diff(empty, empty), Difference)
    # Otherwise host time would be compared with device time.
    with pytest.raises(
        UsageError, match=f"{tmp_path}/b.db has device work, {empty} has host work only"
    ):
        unified_prof.diff(empty, tmp_path / "b.db")


@pytest.mark.slow
def test_equal_recordings_are_identical_and_a_changed_one_is_not(tmp_path: Path) -> None:
    base, new = recording(tmp_path / "a.db"), recording(tmp_path / "b.db")
    assert compared(base, new).identical
    slower = [*GPU[:-1], Op(GPU[-1].name, [(*GPU[-1].kernels[0][:2], 21)])]
    assert not compared(base, recording(tmp_path / "c.db", slower)).identical


def test_diff_is_public_and_accepts_a_list_of_paths(tmp_path: Path) -> None:
    base, new = recording(tmp_path / "gpu.db"), npu_recording(tmp_path / "npu.db")
    found = unified_prof.diff(base, [new])
    assert isinstance(found, DeviceDifference)
    assert found.base.label == str(base)


OPERATIONS = st.lists(
    st.builds(
        Op,
        name=st.sampled_from(["aten::linear", "aten::add", "npu::npu_x", "aten::to", "f" * 3000]),
        kernels=st.lists(
            st.tuples(
                st.sampled_from(["gemm", "Cast", "reduce_kernel", "k" * 5000, "", "N/A"]),
                st.sampled_from(["MatMulV2", "Cast", "aten::mm", "N/A", ""]),
                st.integers(0, 900),
            ),
            min_size=1,
            max_size=3,
        ),
        module=st.sampled_from(["A_0", "A_1", "Net_0.layers.3"]),
        count=st.integers(1, 3),
    ),
    max_size=6,
)


@pytest.mark.slow
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(OPERATIONS, OPERATIONS, st.integers(1, 3), st.booleans(), st.booleans(), st.integers(1, 2))
def test_rows_add_up_to_the_work_of_both_sides_for_random_operations(
    tmp_path_factory: pytest.TempPathFactory,
    base: list[Op],
    new: list[Op],
    steps: int,
    with_steps: bool,
    host: bool,
    devices: int,
) -> None:
    folder = tmp_path_factory.mktemp("sums")
    before = recording(folder / "a.db", base, steps=2, devices=devices)
    after = npu_recording(folder / "b.db", new, steps=steps, with_steps=with_steps, host=host)
    found = compared(before, after)
    work = 200 * 2 * devices + 2 * devices * sum(
        op.count * sum(took for _, _, took in op.kernels) for op in base
    )
    assert found.base.work_ns == work


def test_kernels_without_operations_are_paired_by_their_type(tmp_path: Path) -> None:
    many = [Op("", [(f"kernel_{n}", f"Type{n}", 5)]) for n in range(300)]
    base = recording(tmp_path / "a.db", many[:200], steps=1, host=False, with_steps=False)
    new = npu_recording(tmp_path / "b.db", many[100:], steps=1, host=False, with_steps=False)
    found = compared(base, new)
    assert sum(row.side == "both" for row in found.operations) >= 100


@pytest.mark.parametrize("host", [True, False])
def test_comparison_does_not_depend_on_window_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: bool
) -> None:
    base, new = recording(tmp_path / "a.db", host=host), npu_recording(tmp_path / "b.db", host=host)
    whole = compared(base, new)
    monkeypatch.setattr(tasks, "WINDOW", 3)
    monkeypatch.setattr(device_leaves, "_MAX_ROWS", 4)
    parts = compared(base, new)
    assert parts.operations == whole.operations
    assert parts.kernels == whole.kernels
    assert parts.left_out == whole.left_out
