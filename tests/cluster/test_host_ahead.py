"""Ranks whose hosts run ahead of their devices: a step lasts as long as on the device."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.analysis.advice.faulty_runs import MS, US, FaultyRun
from tests.analysis.advice.test_npu_queue import write_queued
from unified_prof.cluster.rank_map import read_partials
from unified_prof.cluster.summary import summarize_run

LENGTHS = [10 * MS, 10 * MS, 30 * MS, 10 * MS]


def write_launched(path: Path, lengths: list[int]) -> Path:
    """Write steps of 2 ms on the host, in which the program itself launches ten kernels each."""
    with FaultyRun(path) as run:
        at = 10 * US
        for step, length in enumerate(lengths):
            begin = step * 2 * MS
            run.step(step, begin, begin + 2 * MS)
            for kernel in range(10):
                run.kernel(at, at + length // 10 - US, launched=begin + kernel * 100 * US)
                at += length // 10
    return path


@pytest.mark.parametrize("write", [write_queued, write_launched], ids=["npu", "gpu"])
def test_steps_last_as_long_as_on_the_device(
    write: Callable[[Path, list[int]], Path], tmp_path: Path
) -> None:
    (partial,) = read_partials(write(tmp_path / "run.db", LENGTHS), 0)
    steps = partial.steps
    length = steps["end"] - steps["start"]
    assert length.tolist() == pytest.approx(LENGTHS, rel=0.01)
    np.testing.assert_array_equal(steps["start"][1:], steps["end"][:-1])
    np.testing.assert_array_equal(steps["compute"] + steps["exposed"] + steps["idle"], length)
    assert partial.kernels["n"].tolist() == [10] * len(LENGTHS)


def test_each_rank_of_a_file_has_the_steps_of_its_device(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    with FaultyRun(path) as run:
        for device, length in enumerate((10 * MS, 20 * MS)):
            run.row("RANK_DEVICE_MAP", rankId=device, deviceId=device)
            for step in range(3):
                launched = step * 2 * MS + US
                start = step * length + 10 * US
                run.kernel(start, start + length - US, launched=launched, device=device)
        for step in range(3):
            run.step(step, step * 2 * MS, (step + 1) * 2 * MS)
    found = summarize_run(read_partials(path)).tables["STEP_RANK"]
    lengths = {(step, rank): end - start for step, rank, start, end, *_ in found}
    ends = [(step, rank) for step in range(3) for rank in range(2)]
    assert [lengths[one] for one in ends] == pytest.approx([10 * MS, 20 * MS] * 3, rel=0.01)
