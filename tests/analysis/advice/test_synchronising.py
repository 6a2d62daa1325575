"""Synchronizing calls and blocking launches."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.analysis.advice.faulty_runs import MS, US, FaultyRun, advice, findings_by_kind, saving_ns

STEP = 1000 * US


def write_synchronizations(path: Path, *, queued: bool = False, count: int = 60) -> Path:
    """Write kernels of 800 µs, each followed by a synchronization and 180 µs of idle time.

    If `queued`, another kernel covers the time after each call.
    """
    with FaultyRun(path) as run:
        run.chain(3, "/w/train.py(12): step")
        for at in range(count):
            begin = at * STEP
            run.kernel(begin + 10 * US, begin + 810 * US, launched=begin)
            if queued:
                run.kernel(begin + 810 * US, begin + STEP + 10 * US, launched=begin + 5 * US)
            run.call(begin + 20 * US, begin + 830 * US, "aten::item", chain=3)
            run.api(begin + 21 * US, begin + 820 * US, "cudaStreamSynchronize")
    return path


def test_synchronizing_call_costs_the_idle_time_until_the_next_kernel(tmp_path: Path) -> None:
    finding = findings_by_kind(write_synchronizations(tmp_path / "run.db"))["synchronising_calls"]
    # The device idles from 810 µs to the next kernel at 1010 µs, 59 times; a host that is ahead
    # leaves a gap of 1 µs.
    assert finding.figures["idle_ns"] == 59 * 190 * US
    assert saving_ns(finding) == 59 * 199 * US
    (row,) = finding.evidence
    assert row["name"] == "aten::item (cudaStreamSynchronize)"
    assert row["line"] == "train.py:12"
    assert row["count"] == 59
    assert "train.py:12" in finding.text
    # A server that waits for requests looks the same without steps.
    assert finding.sure == "possible"
    assert "pauses between requests" in finding.text


@pytest.mark.parametrize("operation", ["aten::nonzero", "aten::equal"])
def test_kernels_of_nonzero_go_with_it(operation: str, tmp_path: Path) -> None:
    with FaultyRun(tmp_path / "run.db") as run:
        for begin in range(0, 60 * STEP, STEP):
            run.kernel(begin + 10 * US, begin + 810 * US, launched=begin)
            run.call(begin + 20 * US, begin + 930 * US, operation)
            run.kernel(begin + 811 * US, begin + 851 * US, launched=begin + 22 * US)
            run.api(begin + 30 * US, begin + 860 * US, "cudaStreamSynchronize")
            run.kernel(begin + 872 * US, begin + 892 * US, launched=begin + 862 * US)
    finding = findings_by_kind(tmp_path / "run.db")["synchronising_calls"]
    # From the first kernel to the last one, compared with the kernels of 800 µs and gaps of 1 µs.
    gain_ns = (59 * STEP + 882 * US) - (60 * 800 * US + 59 * US)
    kept_ns = 60 * 62 * US if operation == "aten::equal" else 0  # two kernels and their gaps
    assert saving_ns(finding) == pytest.approx(gain_ns - kept_ns, rel=0.015)  # gaps stay
    assert ("with 120 kernels that only" in finding.text) == (not kept_ns)


@pytest.mark.parametrize(("work_us", "until_us"), [(350, 350), (80, 80), (350, 500)])
def test_function_that_runs_after_synchronizations_is_named(
    work_us: int, until_us: int, tmp_path: Path
) -> None:
    """If it ends later than the gap, it launches the next kernel, as the forward pass does."""
    with FaultyRun(tmp_path / "run.db") as run:
        for step in range(5):
            run.step(step, step * 40 * MS, (step + 1) * 40 * MS)
            for begin in range(step * 40 * MS, (step + 1) * 40 * MS, MS):
                end = begin + 900 * US - work_us * US
                run.kernel(begin + 10 * US, end, launched=begin)
                run.call(begin + 20 * US, end + 5 * US, "aten::item")
                run.api(begin + 21 * US, end + 4 * US, "cudaStreamSynchronize")
                row = {"startNs": end + 10 * US, "endNs": end + until_us * US, "globalTid": 1}
                run.row("UPROF_PYTHON_FRAMES", **row, name=run.text("env.py(9): step"))
    text = findings_by_kind(tmp_path / "run.db")["synchronising_calls"].text
    assert ("most of it while the host runs step at env.py:9" in text) == (until_us == 350)


def test_pause_after_a_synchronization_is_no_cost_of_it(tmp_path: Path) -> None:
    """Without steps, the pause is not analyzed, so that it cannot be time to save either."""
    with FaultyRun(tmp_path / "run.db") as run:
        for at in range(80):
            begin = at * 100 * US + (at // 40) * 50_000 * US
            run.kernel(begin + US, begin + 99 * US, launched=begin)
            if at == 39:
                run.api(begin + 500 * US, begin + 1000 * US, "cudaDeviceSynchronize")
    assert "synchronising_calls" not in findings_by_kind(tmp_path / "run.db")


def test_synchronizing_call_on_a_busy_device_is_no_finding(tmp_path: Path) -> None:
    findings = findings_by_kind(write_synchronizations(tmp_path / "run.db", queued=True))
    assert "synchronising_calls" not in findings


def test_single_synchronization_at_the_end_of_a_step_is_no_finding(tmp_path: Path) -> None:
    with FaultyRun(tmp_path / "run.db") as run:
        for begin in run.steps(5, STEP):
            run.kernel(begin + 60 * US, begin + 950 * US, launched=begin + 50 * US)
            run.api(begin + 100 * US, begin + 955 * US, "cudaDeviceSynchronize")
    assert advice(tmp_path / "run.db").findings == ()


def test_synchronization_after_every_launch_is_a_blocking_mode(tmp_path: Path) -> None:
    with FaultyRun(tmp_path / "run.db") as run:
        for at in range(50):
            begin = at * 100 * US
            run.kernel(begin + 5 * US, begin + 60 * US, launched=begin)
            run.api(begin + 3 * US, begin + 62 * US, "aclrtSynchronizeStream")
    finding = findings_by_kind(tmp_path / "run.db")["blocking_launches"]
    assert finding.figures["followed"] == 50
    # From the return of each call to the next kernel: 43 µs, 49 times. Without the call, the gap
    # from one kernel to the next is 1 µs instead of 45.
    assert finding.figures["idle_ns"] == 49 * 43 * US
    assert saving_ns(finding) == 49 * 44 * US
    # Idle time belongs to one finding only.
    assert [one.kind for one in advice(tmp_path / "run.db").findings] == ["blocking_launches"]


@pytest.mark.parametrize(("reads", "is_mode"), [(20, True), (30, False)])
def test_synchronizations_that_read_are_no_mode(tmp_path: Path, reads: int, is_mode: bool) -> None:
    with FaultyRun(tmp_path / "run.db") as run:
        for at in range(50):
            begin = at * 100 * US
            run.kernel(begin + 5 * US, begin + 60 * US, launched=begin)
            run.api(begin + 3 * US, begin + 62 * US, "aclrtSynchronizeStream")
            if at < reads:
                run.call(begin + 2 * US, begin + 63 * US, "aten::item")
    assert ("blocking_launches" in findings_by_kind(tmp_path / "run.db")) == is_mode


def test_synchronization_after_few_launches_is_no_blocking_mode(tmp_path: Path) -> None:
    with FaultyRun(tmp_path / "run.db") as run:
        for at in range(50):
            begin = at * 100 * US
            run.kernel(begin + 5 * US, begin + 60 * US, launched=begin)
            if at % 5 == 0:
                run.api(begin + 3 * US, begin + 62 * US, "aclrtSynchronizeStream")
    assert "blocking_launches" not in findings_by_kind(tmp_path / "run.db")


def write_blocking_launches(
    path: Path, *, returns_us: int, short: int = 0, at_once: int = 0
) -> Path:
    """Write kernels whose launch calls return `returns_us` after the kernels end.

    The first are short, and some of them return at once.
    """
    with FaultyRun(path) as run:
        for at in range(60):
            begin = at * 100 * US
            end = begin + (19 if at < short else 50) * US
            takes = end - begin + returns_us * US if at >= at_once else 5 * US
            run.kernel(begin + 10 * US, end, launched=begin, takes=takes)
    return path


def test_launch_calls_that_return_after_their_kernels_are_a_blocking_mode(tmp_path: Path) -> None:
    """ASCEND_LAUNCH_BLOCKING=1 makes no separate synchronizing calls."""
    finding, other = advice(write_blocking_launches(tmp_path / "run.db", returns_us=5)).findings
    assert finding.kind == "blocking_launches"
    assert "unset ASCEND_LAUNCH_BLOCKING" in finding.advice
    # Of 100 µs per kernel the host needs 55 without the wait from 10 to 55 µs.
    assert saving_ns(finding) == 59 * 45 * US
    # The other 15 µs in which the device is idle remain.
    assert (other.kind, saving_ns(other)) == ("host_bound", 59 * 15 * US)


@pytest.mark.parametrize(("at_once", "is_mode"), [(0, True), (12, False)])
def test_short_kernels_are_a_blocking_mode_if_all_calls_wait(
    tmp_path: Path, at_once: int, is_mode: bool
) -> None:
    path = write_blocking_launches(tmp_path / "run.db", returns_us=5, short=60, at_once=at_once)
    assert ("blocking_launches" in findings_by_kind(path)) == is_mode


def test_waits_for_short_kernels_count_as_well(tmp_path: Path) -> None:
    path = write_blocking_launches(tmp_path / "run.db", returns_us=5, short=20)
    finding = findings_by_kind(path)["blocking_launches"]
    assert saving_ns(finding) == (20 * 14 + 39 * 45) * US


def test_long_host_work_costs_its_time_despite_a_synchronization(tmp_path: Path) -> None:
    with FaultyRun(tmp_path / "run.db") as run:
        for begin in run.steps(5, 40 * MS):
            for number in range(60):
                at = begin + number * 250 * US
                run.kernel(at + 10 * US, at + 250 * US, launched=begin + number * 10 * US)
            returned = begin + 15 * MS + 5 * US
            run.call(begin + MS, returned, "aten::item")
            run.api(begin + 2 * MS, returned, "cudaStreamSynchronize")
            run.kernel(begin + 39 * MS + 10 * US, begin + 40 * MS, launched=begin + 39 * MS)
    first, *_ = advice(tmp_path / "run.db").findings
    assert first.kind == "host_bound"
    assert saving_ns(first) == pytest.approx(24 * MS, rel=0.05)


def test_launch_calls_that_return_at_once_are_no_blocking_mode(tmp_path: Path) -> None:
    findings = findings_by_kind(write_blocking_launches(tmp_path / "run.db", returns_us=-20))
    assert [*findings] == ["host_bound"]


def test_idle_time_of_an_input_wait_is_not_counted_again(tmp_path: Path) -> None:
    """Each synchronization is followed by a fetch: only the remaining idle time is its cost."""
    with FaultyRun(tmp_path / "run.db") as run:
        for begin in run.steps(5, STEP):
            run.kernel(begin + 10 * US, begin + 310 * US, launched=begin + 5 * US)
            run.call(begin + 20 * US, begin + 330 * US, "aten::item")
            run.api(begin + 21 * US, begin + 320 * US, "cudaStreamSynchronize")
            name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
            run.call(begin + 400 * US, begin + 900 * US, name)
            run.kernel(begin + 950 * US, begin + 990 * US, launched=begin + 940 * US)
    findings = findings_by_kind(tmp_path / "run.db")
    assert saving_ns(findings["input_wait"]) == 500 * US
    # From the return at 320 to the kernel at 950, without the 500 for the batch; the call itself
    # returns 10 µs after its kernel, and its operation 10 µs later.
    assert findings["synchronising_calls"].figures["idle_ns"] == 4 * 130 * US
    assert saving_ns(findings["synchronising_calls"]) == pytest.approx(150 * US, rel=0.01)


@pytest.mark.parametrize("apart", [0, US])
def test_read_at_the_end_of_the_last_step_counts(tmp_path: Path, apart: int) -> None:
    """Each step ends with `.item()` and 200 us of Python; no kernel follows the last one."""
    with FaultyRun(tmp_path / "run.db") as run:
        for step in range(5):
            begin = step * STEP
            run.step(step, begin, begin + STEP - apart)
            run.kernel(begin + US, begin + 790 * US, launched=begin)
            run.call(begin + 20 * US, begin + 801 * US, "aten::item")
            run.api(begin + 21 * US, begin + 800 * US, "cudaStreamSynchronize")
    finding = findings_by_kind(tmp_path / "run.db")["synchronising_calls"]
    assert finding.figures["idle_ns"] == pytest.approx(4 * 200 * US, rel=0.01)
    assert finding.figures["calls"] == 4


def test_reads_that_delay_launches_cost_more_than_the_idle_time(tmp_path: Path) -> None:
    """2 % of the step is idle after a read, 4 % before kernels that it delays."""
    with FaultyRun(tmp_path / "run.db") as run:
        for begin in run.steps(6, STEP):
            run.kernel(begin + US, begin + 920 * US, launched=begin)
            run.call(begin + 2 * US, begin + 931 * US, "aten::item")
            run.api(begin + 3 * US, begin + 930 * US, "cudaStreamSynchronize")
            for at in (950, 970, 990):
                run.kernel(begin + (at + 1) * US, begin + (at + 6) * US, launched=begin + at * US)
    finding = findings_by_kind(tmp_path / "run.db")["synchronising_calls"]
    assert finding.figures["idle_share"] < 0.03
    assert saving_ns(finding) > 30 * US
