"""Traces that are cut off, or have an empty last step: only complete steps are analyzed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.analysis.advice.faulty_runs import advice
from tests.decoders.kineto import builders
from unified_prof.cluster.rank_map import read_partials
from unified_prof.pipeline.convert import convert

STEPS, PER_STEP, LENGTH_US = 6, 10, 1000


def events(*, on_device: bool) -> list[builders.Event]:
    """Return busy steps of ten operations each, and then their kernels if `on_device`."""
    host, device = [], []
    for step in range(STEPS):
        start, length = step * PER_STEP * LENGTH_US, PER_STEP * LENGTH_US
        host.append(builders.complete("user_annotation", f"ProfilerStep#{step}", start, length))
        for at in range(start, start + length, LENGTH_US):
            host.append(builders.operation("aten::mm", at, LENGTH_US))
            device.append(builders.call(at + 1, 5, at + 1))
            device.append(builders.kernel(at + 10, LENGTH_US - 20, at + 1))
    return [*host, *device] if on_device else host


@pytest.mark.parametrize("on_device", [False, True])
@pytest.mark.parametrize("cut", [None, 3.4, 0.3])
def test_time_after_the_cut_is_not_idle(tmp_path: Path, cut: float | None, on_device: bool) -> None:
    """The trace contains the operations, or else the kernels, of the first `cut` steps."""
    recorded = events(on_device=on_device)
    path = tmp_path / "trace.json"
    if cut is not None:
        unit = 2 * PER_STEP if on_device else PER_STEP + 1
        recorded = recorded[: len(recorded) - round((STEPS - cut) * unit)]
    builders.write(path, recorded)
    if cut is not None:
        path.write_text(path.read_text().removesuffix("\n]}") + ',\n{"ph": "X", "na')
    convert(path, tmp_path / "run.db")
    found = advice(tmp_path / "run.db")
    assert found.steps == {None: STEPS - 1, 3.4: 2, 0.3: 0}[cut]  # The first step warms up.
    idle = ("time_between_operations", "host_bound", "late_work", "unrecorded_work")
    assert not {one.kind for one in found.findings} & set(idle)
    # Without steps, the analyzed time ends at the cut.
    whole_ms = 0.4 * PER_STEP if cut == 0.3 else PER_STEP
    assert found.step_ms is not None
    assert found.step_ms <= whole_ms


@pytest.mark.parametrize(("work", "count"), [(None, STEPS), ("aten::mm", STEPS + 1)])
def test_step_after_the_last_iteration_in_which_the_host_does_nothing_is_no_step(
    tmp_path: Path, work: str | None, count: int
) -> None:
    """`profiler.step()` begins it, and it ends with the recording."""
    begin = STEPS * PER_STEP * LENGTH_US
    last = [builders.complete("user_annotation", f"ProfilerStep#{STEPS}", begin, 50)]
    last += [builders.operation(work, begin + 10, 5)] if work else []
    for on_device in (True, False):
        builders.write(tmp_path / "trace.json", [*events(on_device=on_device), *last])
        path = tmp_path / f"{on_device}.db"
        convert(tmp_path / "trace.json", path)
        assert advice(path).steps == count - 1  # The first step warms up.
    (partial,) = read_partials(tmp_path / "True.db", 0)
    assert len(partial.steps["step"]) == count


@pytest.mark.parametrize("fuller", [(), (0,)])
def test_steps_without_unsorted_calls_are_left_out(tmp_path: Path, fuller: tuple[int, ...]) -> None:
    """Calls and kernels of the last step come before those of two earlier steps, which are cut."""
    recorded = events(on_device=True)
    for step in fuller:  # as a first step that compiles or loads
        begin = step * PER_STEP * LENGTH_US + 900
        recorded += [builders.call(begin + at, 1, 1000 + 100 * step + at) for at in range(50)]
    lacking = range(3 * PER_STEP * LENGTH_US, 5 * PER_STEP * LENGTH_US)
    recorded = [
        one
        for one in recorded
        if one["cat"] not in ("kernel", "cuda_runtime") or one["ts"] not in lacking
    ]
    path = builders.write(tmp_path / "trace.json", recorded)
    path.write_text(path.read_text().removesuffix("\n]}") + ',\n{"ph": "X", "na')
    convert(path, tmp_path / "run.db")
    found = advice(tmp_path / "run.db")
    assert (found.steps, found.step_ms) == (2, 10)
    assert not {one.kind for one in found.findings} & {"host_bound", "unrecorded_work", "late_work"}


@pytest.mark.parametrize(("end", "sure"), [("\n]}", "certain"), (',\n{"ph": "X', "possible")])
def test_findings_before_a_cut_are_possible(tmp_path: Path, end: str, sure: str) -> None:
    """Traces of old releases are not sorted: events before the cut may be missing, too."""
    late = [
        one for one in events(on_device=True) if one["cat"] != "kernel" or one["ts"] % 2000 < 999
    ]
    path = builders.write(tmp_path / "trace.json", late)
    path.write_text(path.read_text().removesuffix("\n]}") + end)
    convert(path, tmp_path / "run.db")
    found = {one.kind: one.sure for one in advice(tmp_path / "run.db").findings}
    assert found["host_bound"] == sure
