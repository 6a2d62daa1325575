"""Recordings of devices compared: every row counts once, counterparts stand side by side."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import unified_prof
from tests.analysis.compare.device.recordings import GPU, NPU, Op, on_npu, recording
from unified_prof.compare import device_leaves
from unified_prof.compare.device_diff import DeviceDifference, of_devices
from unified_prof.compare.device_side import PARTS
from unified_prof.compare.device_tables import Line
from unified_prof.compare.diff import Difference
from unified_prof.errors import UsageError
from unified_prof.recording import tasks


def compared(base: Path, new: Path) -> DeviceDifference:
    found = of_devices([base], [new])
    assert found is not None
    check_sums(found)
    return found


def check_sums(found: DeviceDifference) -> None:
    """Every table adds up to the work of both sides, and the parts of steps to the steps."""
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
    """Return the times of a row in a step of each side."""
    return (
        None if row.base is None else found.base.per_share(row.base.total_ns),
        None if row.new is None else found.new.per_share(row.new.total_ns),
    )


@pytest.fixture
def both(tmp_path: Path) -> DeviceDifference:
    return compared(recording(tmp_path / "gpu.db"), on_npu(tmp_path / "npu.db"))


def test_one_operation_of_two_vendors_is_one_row(both: DeviceDifference) -> None:
    rows = by_name(both)
    linear = rows["matmul", "linear"]
    assert times(both, linear) == (200, 300)
    assert both.ratio(linear) == 1.5
    assert linear.base is not None
    assert (linear.base.calls, linear.base.runs) == (4, 4)
    assert (linear.base_name, linear.new_name) == ("aten::linear", "aten::linear")


def test_backends_words_for_one_operation_are_one_name(both: DeviceDifference) -> None:
    attention = by_name(both)["attention", "scaled_dot_product_attention"]
    assert times(both, attention) == (300, 700)
    assert attention.base_name == "aten::scaled_dot_product_attention"
    assert attention.new_name == "npu::npu_fusion_attention"


def test_operations_with_other_names_are_paired_by_module(both: DeviceDifference) -> None:
    found = by_name(both)["element-wise", "silu -> gated"]
    assert times(both, found) == (30, 50)
    assert found.modules == ("Glu",)


def test_what_only_one_side_has_is_told(both: DeviceDifference) -> None:
    alone = {(row.class_name, row.name, row.side) for row in both.operations if row.side != "both"}
    assert alone == {("cast and format", "linear", "new")}
    casts = by_name(both)["cast and format", "linear"]
    assert [kernel.name for kernel in both.kernels_of(casts)] == ["trans_TransData_1"]
    assert both.ratio(casts) is None
    assert both.change_ns(casts) == 120


def test_collectives_are_one_row_by_kind_and_group(both: DeviceDifference) -> None:
    rows = [row for row in both.operations if row.class_name == "collectives"]
    assert [(row.name, row.side) for row in rows] == [("all_reduce (dp)", "both")]
    assert times(both, rows[0]) == (200, 200)
    assert rows[0].base is not None
    assert rows[0].base.calls == 2


def test_the_greatest_loss_stands_first(both: DeviceDifference) -> None:
    changes = [both.change_ns(row) for row in both.operations]
    assert changes == sorted(changes, reverse=True)
    assert both.operations[0].name == "scaled_dot_product_attention"


def test_the_devices_are_named_and_no_verdict_is_given(both: DeviceDifference) -> None:
    assert (both.base.devices, both.new.devices) == (("NVIDIA H100",), ("Ascend910B",))
    assert not both.same_devices


def test_matrix_products_are_limited_by_the_peak_of_their_type(tmp_path: Path) -> None:
    base = recording(tmp_path / "a.db", model="NVIDIA H200")
    new = recording(tmp_path / "b.db", model="NVIDIA A100-SXM4-80GB")
    peaks = compared(base, new).allowed["matmul"]
    assert (peaks.base.name, peaks.base.rate, peaks.new.rate) == ("bf16", 989e12, 312e12)


def test_other_numbers_of_steps_are_compared_by_step(tmp_path: Path) -> None:
    found = compared(recording(tmp_path / "a.db", steps=2), recording(tmp_path / "b.db", steps=7))
    assert (found.base.steps, found.new.steps) == (2, 7)
    assert {found.change_ns(row) for row in found.operations} == {0.0}
    assert all(found.ratio(row) == 1 for row in found.operations)
    assert found.same_devices
    assert len(found.left_out) == 2


def test_recordings_without_steps_are_compared_as_a_whole(tmp_path: Path) -> None:
    base = recording(tmp_path / "a.db", steps=2, marked=False, warm_up_ns=0)
    new = recording(tmp_path / "b.db", steps=6, marked=False, warm_up_ns=0)
    found = compared(base, new)
    (warning,) = found.warnings
    assert "have no steps" in warning
    assert "occur 3 times as often" in warning
    assert found.base.steps is None
    stepped = compared(recording(tmp_path / "c.db", steps=2), new)
    assert "per step" in stepped.warnings[0]
    assert "occur 6 times as often" in stepped.warnings[0]


def test_a_side_without_host_rows_is_compared_by_class_and_kind_of_kernel(tmp_path: Path) -> None:
    base = recording(tmp_path / "a.db", NPU, model="Ascend910B")
    bare = on_npu(tmp_path / "b.db", host=False, marked=False, warm_up_ns=0)
    found = compared(base, bare)
    assert any("new has no framework operations" in warning for warning in found.warnings)
    names = {row.name for row in found.operations if row.side == "both"}
    assert {"matmul", "scaled_dot_product_attention", "gelu", "layer_norm"} <= names
    gpu = compared(recording(tmp_path / "c.db", host=False, warm_up_ns=0), bare)
    assert {row.name: row.side for row in gpu.classes}["matmul"] == "both"
    assert any("neither side has framework" in warning for warning in gpu.warnings)


def test_kernels_of_no_operation_are_one_row_a_class_on_other_devices(tmp_path: Path) -> None:
    graph = [Op("", [(f"Cijk_gemm_{n}", f"Cijk_gemm_{n}", 10)]) for n in range(5)]
    base = recording(tmp_path / "a.db", graph, model="AMD MI300X", host=False)
    new = recording(tmp_path / "b.db", graph, host=False)
    rows = by_name(compared(base, new))
    assert rows["matmul", "(kernels of no operation)"].side == "both"
    same = recording(tmp_path / "c.db", graph, host=False)
    assert ("matmul", "Cijk_gemm_0") in by_name(compared(new, same))


def test_several_devices_are_told_as_one_of_them(tmp_path: Path) -> None:
    one = recording(tmp_path / "a.db", devices=1, collective=None)
    four = recording(tmp_path / "b.db", devices=4, collective=None)
    found = compared(one, four)
    assert (found.base.device_count, found.new.device_count) == (1, 4)
    assert {found.change_ns(row) for row in found.operations} == {0.0}


def test_the_ranks_of_a_folder_are_one_side(tmp_path: Path) -> None:
    for side in ("base", "new"):
        (tmp_path / side).mkdir()
    for rank in range(3):
        recording(tmp_path / "base" / f"rank{rank}.db", steps=2)
    for rank in range(2):
        on_npu(tmp_path / "new" / f"rank{rank}.db", steps=3)
    found = compared(tmp_path / "base", tmp_path / "new")
    assert (found.base.recordings, found.new.recordings) == (3, 2)
    assert (found.base.steps, found.new.steps) == (6, 6)
    assert times(found, by_name(found)["matmul", "linear"]) == (200, 300)


def test_ranks_without_steps_are_left_out_where_others_have_some(tmp_path: Path) -> None:
    for side in ("base", "new"):
        (tmp_path / side).mkdir()
        recording(tmp_path / side / "rank0.db")
    recording(tmp_path / "new" / "rank1.db", marked=False)
    found = compared(tmp_path / "base", tmp_path / "new")
    assert any("have no steps and are left out" in warning for warning in found.warnings)
    assert {found.change_ns(row) for row in found.operations} == {0.0}


def test_a_recording_without_work_is_none_of_a_device(tmp_path: Path) -> None:
    empty = recording(tmp_path / "a.db", (), collective=None, warm_up_ns=0)
    assert of_devices([empty], [recording(tmp_path / "b.db")]) is None
    assert isinstance(unified_prof.diff(empty, empty), Difference)
    # Beside one with work it would be the host's time against a device's.
    with pytest.raises(
        UsageError, match=f"{tmp_path}/b.db has device work, {empty} has host work only"
    ):
        unified_prof.diff(empty, tmp_path / "b.db")


def test_one_recording_given_twice_is_told_from_two_that_are_alike(tmp_path: Path) -> None:
    base, new = recording(tmp_path / "a.db"), recording(tmp_path / "b.db")
    assert compared(base, new).identical
    slower = [*GPU[:-1], Op(GPU[-1].name, [(*GPU[-1].kernels[0][:2], 21)])]
    assert not compared(base, recording(tmp_path / "c.db", slower)).identical


def test_it_is_public(tmp_path: Path) -> None:
    base, new = recording(tmp_path / "gpu.db"), on_npu(tmp_path / "npu.db")
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


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(OPERATIONS, OPERATIONS, st.integers(1, 3), st.booleans(), st.booleans(), st.integers(1, 2))
def test_the_rows_add_up_to_the_work_of_both_sides(
    tmp_path_factory: pytest.TempPathFactory,
    base: list[Op],
    new: list[Op],
    steps: int,
    marked: bool,
    host: bool,
    devices: int,
) -> None:
    folder = tmp_path_factory.mktemp("sums")
    before = recording(folder / "a.db", base, steps=2, devices=devices)
    after = on_npu(folder / "b.db", new, steps=steps, marked=marked, host=host)
    found = compared(before, after)
    work = 200 * 2 * devices + 2 * devices * sum(
        op.count * sum(took for _, _, took in op.kernels) for op in base
    )
    assert found.base.work_ns == work


def test_kernels_without_operations_are_paired_by_their_type(tmp_path: Path) -> None:
    many = [Op("", [(f"kernel_{n}", f"Type{n}", 5)]) for n in range(300)]
    base = recording(tmp_path / "a.db", many[:200], steps=1, host=False, marked=False)
    new = on_npu(tmp_path / "b.db", many[100:], steps=1, host=False, marked=False)
    found = compared(base, new)
    assert sum(row.side == "both" for row in found.operations) >= 100


@pytest.mark.parametrize("host", [True, False])
def test_work_read_in_many_windows_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: bool
) -> None:
    base, new = recording(tmp_path / "a.db", host=host), on_npu(tmp_path / "b.db", host=host)
    whole = compared(base, new)
    monkeypatch.setattr(tasks, "WINDOW", 3)
    monkeypatch.setattr(device_leaves, "_MAX_ROWS", 4)
    parts = compared(base, new)
    assert parts.operations == whole.operations
    assert parts.kernels == whole.kernels
    assert parts.left_out == whole.left_out
