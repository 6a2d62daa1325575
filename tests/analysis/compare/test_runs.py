"""Device recordings as comparable runs with one sample per step."""

from pathlib import Path

import numpy as np
import pytest

from tests.analysis.builders import Device
from unified_prof.baselines import api
from unified_prof.compare import runs
from unified_prof.compare.confidence import Noise
from unified_prof.compare.diff import Difference, diff
from unified_prof.compare.gate import Limits, gate
from unified_prof.report.operation_difference import difference_document
from unified_prof.report.terminal import render_text


def recording(
    path: Path, steps: int, *, matmul_ns: int = 100, vendor: str = "npu", with_steps: bool = True
) -> Path:
    """Write steps of a linear layer and a relu, after work outside the steps."""
    with Device(path) as device:
        device.task(10, 500, connection=1, kernel=(f"{vendor}_fill", "Fill"))
        device.call(0, 600, "aten::zeros", launches=1)
        for number in range(steps):
            start, connection = 1000 + 5000 * number, 100 + 10 * number
            device.call(start, start + 4000, f"ProfilerStep#{number}" if with_steps else "other")
            device.call(start + 10, start + 2000, "nn.Module: Net_0", kind=50003)
            device.call(start + 30, start + 900, "aten::linear", launches=connection)
            device.call(start + 1100, start + 1300, "aten::relu", launches=connection + 1)
            for at, took, link, name in (
                (1000, matmul_ns + number, connection, "matmul"),
                (1400, 50, connection + 1, "relu"),
            ):
                kernel = (f"{vendor}_{name}", name)
                device.task(start + at, start + at + took, connection=link, kernel=kernel)
            # The collective is late in every step except the first: it stays one operation.
            offset = 1500 if number else 1350
            name = f"{vendor}Reduce__{number}"
            device.collective(start + offset, start + offset + 20, name, "Reduce")
    return path


def compared(base: Path, new: Path) -> Difference:
    return diff(runs.load([base]), runs.load([new]))


def by_name(found: Difference) -> dict[str, tuple[str, float]]:
    return {change.place.name: (change.status, change.delta_ns) for change in found.changes}


def test_each_step_is_a_sample_and_work_outside_steps_is_left_out(tmp_path: Path) -> None:
    run = runs.load([recording(tmp_path / "a.db", 6)])
    assert run.steps == 6
    names = [place.name for place in run.operations.places]
    assert sorted(names) == ["Reduce", "aten::linear", "aten::relu"]
    linear = run.operations.total_ns[names.index("aten::linear")]
    assert linear.tolist() == [100, 101, 102, 103, 104, 105]
    assert not np.isnan(run.operations.total_ns).any()


def test_recordings_with_different_numbers_of_steps_are_compared_per_step(tmp_path: Path) -> None:
    found = compared(
        recording(tmp_path / "a.db", 6), recording(tmp_path / "b.db", 12, matmul_ns=300)
    )
    changes = by_name(found)
    status, delta_ns = changes["aten::linear"]
    assert status == "slower"
    assert delta_ns == pytest.approx(203)
    assert {*changes.values()} == {("slower", delta_ns), ("unclear", 0.0)}
    assert not found.warnings
    assert [line.partition(" has ")[2] for line in found.left_out] == [
        f"{side.outside_steps_ns / 1e6:.6g} ms of work outside its steps, which is not compared"
        for side in (found.base, found.new)
    ]
    assert min(found.base.outside_steps_ns, found.new.outside_steps_ns) > 0


def test_gpu_and_npu_kernels_are_listed_under_the_same_operation(tmp_path: Path) -> None:
    found = compared(
        recording(tmp_path / "gpu.db", 5, vendor="cuda"), recording(tmp_path / "npu.db", 7)
    )
    assert {status for status, _ in by_name(found).values()} == {"unclear"}, "one run per side"
    kernels = {(one.operation, one.name): (one.base_ns, one.new_ns) for one in found.kernel_changes}
    linear = {one: times for one, times in kernels.items() if one[0] == "aten::linear"}
    assert linear == {
        ("aten::linear", "cuda_matmul"): (102.0, None),
        ("aten::linear", "npu_matmul"): (None, 103.0),
    }
    assert not any(operation == "aten::zeros" for operation, _ in kernels)


def test_recording_without_steps_is_not_compared_with_steps(tmp_path: Path) -> None:
    stepped = recording(tmp_path / "a.db", 5)
    whole = recording(tmp_path / "b.db", 5, with_steps=False)
    found = compared(stepped, whole)
    assert any("whole recording" in warning for warning in found.warnings)
    assert not found.totals
    found = compared(whole, whole)
    assert any("have no steps" in warning for warning in found.warnings)


def test_baseline_keeps_the_number_of_steps(tmp_path: Path) -> None:
    run = runs.load([recording(tmp_path / "a.db", 6)])
    stored = api.load(api.dump(run), where="here")
    assert stored.steps == 6
    noise = Noise(0.01, degrees=5)
    assert gate(stored, run, ["operation:aten::linear"], Limits(), noise).outcome == "pass"


def test_kernels_of_a_step_are_an_exact_metric(tmp_path: Path) -> None:
    run = runs.load([recording(tmp_path / "gpu.db", 5, vendor="cuda")])
    assert run.counts["kernels"] == 3, "two operations and a collective"
    assert gate(run, run, ["kernels"], Limits()).outcome == "pass"


def host_recording(path: Path, reads: int, dtype: str = "float") -> Path:
    """Write six steps of two linear layers, and `reads` elements read before them."""
    inputs = "4,8;;4", f"{dtype};Scalar;long int"
    with Device(path) as device:
        for number in range(6):
            start = 1_000_000 * number
            device.call(start, start + 900_000, f"ProfilerStep#{number}")
            for read in range(reads):
                at = start + 10 + 100 * read
                device.call(at, at + 50, "aten::item")
            for layer in (1, 2):
                at = start + 800_000 + 10_000 * layer
                device.call(at, at + 1000, "aten::linear", inputs=inputs)
    return path


@pytest.mark.parametrize("limit", [20_000, 20])
def test_calls_are_summed_on_both_sides_if_one_has_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    monkeypatch.setattr(runs, "_MAX_CALLS", limit)
    many, few = host_recording(tmp_path / "a.db", 100), host_recording(tmp_path / "b.db", 3)
    for base, new in ((many, few), (few, many)):
        found = compared(base, new)
        linear = [change for change in found.changes if change.place.name == "aten::linear"]
        assert {change.status for change in linear} == {"unclear"}, "a pair, not added or removed"
        assert sum(change.base_ns or 0 for change in linear) == 2000
        assert len(linear) == (2 if limit > 1000 else 1)
        delta_ns = 97 * 50 * (1 if new is many else -1)
        assert found.new_ns - found.base_ns == pytest.approx(delta_ns)
    both = runs.load([few, many])
    assert len(both.operations) == (5 if limit > 1000 else 2)
    assert np.nansum(both.operations.total_ns[-1]) == 12 * (1000 if limit > 1000 else 2000)


def test_changed_types_are_named_in_rows_and_if_rows_are_hidden(tmp_path: Path) -> None:
    base = host_recording(tmp_path / "a.db", 1, "double")
    new = host_recording(tmp_path / "b.db", 2, "c10::BFloat16")
    found = compared(base, new)
    types = {change.place.name: (change.base_types, change.new_types) for change in found.changes}
    assert types == {"aten::item": ((), ()), "aten::linear": (("fp64",), ("bf16",))}
    text = render_text(difference_document(found, top=20))
    assert "inputs of 1 operation changed from fp64 to bf16: aten::linear" in text
    assert "fp64 -> bf16" not in text, "the row is hidden"
    text = render_text(difference_document(found, top=20, everything=True))
    assert "aten::linear (fp64 -> bf16)" in text
    same = compared(base, host_recording(tmp_path / "c.db", 2, "double"))
    assert not any(change.base_types for change in same.changes)
    assert "inputs of" not in render_text(difference_document(same, top=20))
