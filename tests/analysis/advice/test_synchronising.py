"""Calls that wait for the device."""

from __future__ import annotations

from pathlib import Path

from tests.analysis.advice.plants import US, Plant, advice, cost_ns, found

STEP = 1000 * US


def synchronised(path: Path, *, queued: bool = False, count: int = 60) -> Path:
    """Write kernels of 800 µs, each waited for; 180 µs later the next one begins.

    Queued, another kernel covers the time after every call.
    """
    with Plant(path) as plant:
        plant.chain(3, "/w/train.py(12): step")
        for at in range(count):
            begin = at * STEP
            plant.kernel(begin + 10 * US, begin + 810 * US, launched=begin)
            if queued:
                plant.kernel(begin + 810 * US, begin + STEP + 10 * US, launched=begin + 5 * US)
            plant.call(begin + 20 * US, begin + 830 * US, "aten::item", chain=3)
            plant.api(begin + 21 * US, begin + 820 * US, "cudaStreamSynchronize")
    return path


def test_idle_time_after_a_call_until_the_next_work_is_the_cost(tmp_path: Path) -> None:
    said = found(synchronised(tmp_path / "run.db"))["synchronising_calls"]
    # From the call's return at 820 µs to the next kernel at 1010 µs, 59 times.
    assert cost_ns(said) == 59 * 190 * US
    (row,) = said.evidence
    assert row["name"] == "aten::item (cudaStreamSynchronize)"
    assert row["line"] == "train.py:12"
    assert row["count"] == 59
    assert "train.py:12" in said.text


def test_a_call_while_the_device_has_work_costs_nothing(tmp_path: Path) -> None:
    said = found(synchronised(tmp_path / "run.db", queued=True))
    assert "synchronising_calls" not in said


def test_the_one_call_at_a_steps_end_is_the_timers(tmp_path: Path) -> None:
    with Plant(tmp_path / "run.db") as plant:
        for step in range(5):
            begin = step * STEP
            plant.step(step, begin, begin + STEP)
            plant.kernel(begin + 60 * US, begin + 950 * US, launched=begin + 50 * US)
            plant.api(begin + 100 * US, begin + 955 * US, "cudaDeviceSynchronize")
    assert advice(tmp_path / "run.db").findings == ()


def test_a_call_after_every_launch_is_a_mode(tmp_path: Path) -> None:
    with Plant(tmp_path / "run.db") as plant:
        for at in range(50):
            begin = at * 100 * US
            plant.kernel(begin + 5 * US, begin + 60 * US, launched=begin)
            plant.api(begin + 3 * US, begin + 62 * US, "aclrtSynchronizeStream")
    said = found(tmp_path / "run.db")["blocking_launches"]
    assert said.figures["followed"] == 50
    # From the return of a call to the beginning of the next kernel: 43 µs, 49 times.
    assert cost_ns(said) == 49 * 43 * US
    first, second = advice(tmp_path / "run.db").findings[:2]
    assert (first.kind, second.kind) == ("blocking_launches", "synchronising_calls")


def test_a_call_after_few_launches_is_no_mode(tmp_path: Path) -> None:
    with Plant(tmp_path / "run.db") as plant:
        for at in range(50):
            begin = at * 100 * US
            plant.kernel(begin + 5 * US, begin + 60 * US, launched=begin)
            if at % 5 == 0:
                plant.api(begin + 3 * US, begin + 62 * US, "aclrtSynchronizeStream")
    assert "blocking_launches" not in found(tmp_path / "run.db")
