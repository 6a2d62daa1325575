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
    # Without steps, a server that waits for requests looks the same.
    assert said.sure == "possible"
    assert "pauses between requests" in said.text


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
    # The same idle time belongs to one finding.
    assert [one.kind for one in advice(tmp_path / "run.db").findings] == ["blocking_launches"]


def test_a_call_after_few_launches_is_no_mode(tmp_path: Path) -> None:
    with Plant(tmp_path / "run.db") as plant:
        for at in range(50):
            begin = at * 100 * US
            plant.kernel(begin + 5 * US, begin + 60 * US, launched=begin)
            if at % 5 == 0:
                plant.api(begin + 3 * US, begin + 62 * US, "aclrtSynchronizeStream")
    assert "blocking_launches" not in found(tmp_path / "run.db")


def launch_blocking(path: Path, *, returns_us: int) -> Path:
    """Write kernels whose launch calls return some time after the kernels."""
    with Plant(path) as plant:
        for at in range(60):
            begin = at * 100 * US
            takes = 50 * US + returns_us * US
            plant.kernel(begin + 10 * US, begin + 50 * US, launched=begin, takes=takes)
    return path


def test_launch_calls_that_return_after_their_kernels_are_a_debugging_mode(tmp_path: Path) -> None:
    """CUDA_LAUNCH_BLOCKING=1 makes no synchronizing calls of its own."""
    (finding,) = advice(launch_blocking(tmp_path / "run.db", returns_us=5)).findings
    assert finding.kind == "blocking_launches"
    assert "CUDA_LAUNCH_BLOCKING" in finding.advice
    assert cost_ns(finding) == 59 * 60 * US


def test_launch_calls_that_return_at_once_are_no_debugging_mode(tmp_path: Path) -> None:
    findings = found(launch_blocking(tmp_path / "run.db", returns_us=-20))
    assert [*findings] == ["host_bound"]


def test_idle_time_of_an_input_wait_belongs_to_it_alone(tmp_path: Path) -> None:
    """A batch is fetched after each synchronization: only the rest is its cost."""
    with Plant(tmp_path / "run.db") as plant:
        for step in range(5):
            begin = step * STEP
            plant.step(step, begin, begin + STEP)
            plant.kernel(begin + 10 * US, begin + 310 * US, launched=begin + 5 * US)
            plant.call(begin + 20 * US, begin + 330 * US, "aten::item")
            plant.api(begin + 21 * US, begin + 320 * US, "cudaStreamSynchronize")
            name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
            plant.call(begin + 400 * US, begin + 900 * US, name)
            plant.kernel(begin + 950 * US, begin + 990 * US, launched=begin + 940 * US)
    findings = found(tmp_path / "run.db")
    assert cost_ns(findings["input_wait"]) == 500 * US
    # From the return at 320 to the kernel at 950, without the 500 for the batch.
    assert cost_ns(findings["synchronising_calls"]) == 130 * US
