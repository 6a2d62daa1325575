"""Exposed communication, small messages, and waits for other ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.analysis.advice.faulty_runs import US, FaultyRun, advice, findings_by_kind, saving_ns
from unified_prof.explain.advice.communication_rules import small_buckets
from unified_prof.explain.advice.device_context import DeviceContext
from unified_prof.explain.api import open_analyses
from unified_prof.explain.msprof import MsprofAnalysis

STEP = 1000 * US
MIB = 1 << 20
FP32 = 4


class RunWithCollectives(FaultyRun):
    """Writes a recording whose collectives have sizes."""

    def all_reduce(
        self,
        start: int,
        end: int,
        size: int,
        *,
        members: int = 8,
        connection: int = 4294967295,
        kind: str = "hcom_allReduce_",
        retry: int = 0,
    ) -> None:
        """Add an all-reduce, or another collective, of `size` bytes."""
        self._connections += 1
        number = self._connections
        names = {"opType": kind, "groupName": "dp", "opName": f"{kind}_{number}"}
        row = {column: self.text(name) for column, name in names.items()}
        row |= {"connectionId": connection, "opId": number, "deviceId": 0}
        row |= {"count": size // 4, "dataType": FP32, "rankSize": members, "retry": retry}
        self.row("COMMUNICATION_OP", startNs=start, endNs=end, **row)


def steps(path: Path, *messages: tuple[int, int, int], compute: int, members: int = 8) -> Path:
    """Write five 1 ms steps: a kernel until `compute`, then messages (start, end, bytes)."""
    with RunWithCollectives(path, revision="latest") as run:
        for begin in run.steps(5, STEP):
            run.kernel(begin, begin + compute)
            for start, end, size in messages:
                run.all_reduce(begin + start, begin + end, size, members=members)
    return path


AFTER_COMPUTE = ((600 * US, 800 * US, 8 * MIB), (800 * US, STEP, 8 * MIB))


def test_exposed_communication_costs_all_but_the_last_message(tmp_path: Path) -> None:
    finding = findings_by_kind(steps(tmp_path / "run.db", *AFTER_COMPUTE, compute=600 * US))[
        "exposed_communication"
    ]
    assert finding.figures["exposed_share"] == 0.4
    assert saving_ns(finding) == 200 * US
    # 40 % is exposed and 20 % is the saving: the text explains the difference.
    assert "40 % of the time is communication that does not overlap with compute" in finding.text
    clause = "which cannot be overlapped, so faster communication may save more; saves up to 200 µs"
    assert clause in finding.text
    assert finding.sure == "likely"
    assert finding.evidence[0]["name"] == "all_reduce of 8.39 MB"


@pytest.mark.parametrize(("waits_us", "cost_us"), [((300, 0, 0, 0), 0), ((300, 60, 60, 60), 240)])
def test_pipeline_waits_at_the_begin_of_a_step_as_long_as_later(
    tmp_path: Path, waits_us: tuple[int, ...], cost_us: int
) -> None:
    """Stages of equal length wait as well until the first microbatch arrives."""
    with RunWithCollectives(tmp_path / "run.db", revision="latest") as run:
        for step in range(5):
            at = step * STEP
            run.step(step, at, at + STEP)
            for number, wait_us in enumerate((*waits_us, 0)):
                received = at + (wait_us + 5) * US
                run.all_reduce(at, received, 8 * MIB, members=2, kind="hcom_receive_")
                until = (step + 1) * STEP if number == len(waits_us) else received + 80 * US
                run.kernel(received, until)
                at = until
    findings = findings_by_kind(tmp_path / "run.db")
    cost = saving_ns(findings["waiting_for_ranks"]) if cost_us else len(findings)
    assert cost == pytest.approx(cost_us * US, rel=0.01)


def test_waiting_of_a_message_that_starts_with_another_one_costs_its_time(tmp_path: Path) -> None:
    """A send and a receive wait for the same kernel, on two streams."""
    with RunWithCollectives(tmp_path / "run.db", revision="latest") as run:
        for begin in run.steps(5, STEP):
            run.kernel(begin, begin + 400 * US, launched=begin, takes=US)
            for number, length in enumerate((100 * US, 500 * US)):
                at = begin + 10 * US + number * 2 * US
                launch = run.api(at, at + US, "cudaLaunchKernelExC")
                times = begin + 400 * US, begin + 400 * US + length
                run.all_reduce(*times, 8 * MIB, connection=launch)
            run.api(begin + 20 * US, begin + STEP, "cudaDeviceSynchronize")
    finding = findings_by_kind(tmp_path / "run.db")["waiting_for_ranks"]
    assert saving_ns(finding) == pytest.approx(400 * US, rel=0.01)


@pytest.mark.parametrize(
    ("reducing", "optimizer_steps", "cost_us"),
    [((0, 1, 2, 3), (3,), 450), ((3,), (3,), None), ((0, 1, 2, 3), (0, 1, 2, 3), None),
     ((), (3,), None)],
)  # fmt: skip
@pytest.mark.parametrize("others", [None, "loss", "forward"])
def test_reductions_before_the_last_backward_pass_of_an_optimizer_step_cost_their_time(
    tmp_path: Path,
    reducing: tuple[int, ...],
    optimizer_steps: tuple[int, ...],
    cost_us: int | None,
    others: str | None,
) -> None:
    """Four micro-steps with kernels of 50 us, whose reductions of 150 us follow all kernels.

    Each pass also reduces a loss, or, in the forward pass of tensor parallelism, activations.
    """
    with RunWithCollectives(tmp_path / "run.db", revision="latest") as run:
        for begin in run.steps(5, STEP):
            for number in range(4):
                host, kernel = begin + number * 20 * US, begin + number * 50 * US
                run.call(host, host + 5 * US, "DistributedDataParallel.forward")
                run.kernel(kernel + 2 * US, kernel + 50 * US, launched=host, takes=US)
                if others is not None:
                    at = host + (2 if others == "forward" else 12) * US
                    launch = run.api(at, at + US, "cudaLaunchKernelExC")
                    start = begin + 800 * US + number * 40 * US
                    size = 4 if others == "loss" else 8 * MIB
                    run.all_reduce(start, start + 40 * US, size, connection=launch)
                if number in reducing:
                    launch = run.api(host + 10 * US, host + 11 * US, "cudaLaunchKernelExC")
                    start = begin + 200 * US + number * 150 * US
                    run.all_reduce(start, start + 150 * US, 8 * MIB, connection=launch)
                if number in optimizer_steps:
                    run.call(host + 15 * US, host + 16 * US, "Optimizer.step#AdamW.step")
            run.api(begin + 90 * US, begin + STEP, "cudaDeviceSynchronize")
    finding = findings_by_kind(tmp_path / "run.db").get("repeated_reductions")
    if cost_us is None or others == "forward":
        assert finding is None
    else:
        assert finding is not None
        assert saving_ns(finding) == pytest.approx(cost_us * US, rel=0.05)
        assert "reduced 4 times per optimizer step (12 collectives before" in finding.text


def test_advice_without_a_backward_pass_is_not_about_gradients(tmp_path: Path) -> None:
    with RunWithCollectives(tmp_path / "run.db", revision="latest") as run:
        for begin in run.steps(5, STEP):
            call = run.api(begin + US, begin + 2 * US, "cudaLaunchKernel")
            run.call(begin, begin + 3 * US, "aten::mm")
            run.task(begin + 10 * US, begin + 600 * US, connection=call, kernel=("gemm", "gemm"))
            for start, end, size in AFTER_COMPUTE:
                run.all_reduce(begin + start, begin + end, size)
    advised = findings_by_kind(tmp_path / "run.db")["exposed_communication"].advice
    assert "slowest rank" in advised
    assert "bucket" not in advised
    unknown = steps(tmp_path / "unknown.db", *AFTER_COMPUTE, compute=600 * US)
    assert "bucket" in findings_by_kind(unknown)["exposed_communication"].advice


@pytest.mark.parametrize(
    ("beside_us", "shape", "grid", "lost_us"),
    [
        (180, "64,64", "8,1,1", 80),
        (110, "64,64", "8,1,1", None),  # noise
        (180, "64,128", "8,1,1", None),  # other inputs
        (180, "64,64", "16,1,1", None),
    ],
)
def test_kernels_next_to_collectives_cost_what_they_take_longer(
    tmp_path: Path, beside_us: int, shape: str, grid: str, lost_us: int | None
) -> None:
    """Of 21 equal products in a row, every second one runs while an all-reduce moves data."""
    end = 500 * US
    with RunWithCollectives(tmp_path / "run.db", revision="latest") as run:
        for number in range(21):
            host, start, beside = number * 10 * US, end, number % 2 == 1
            end = start + (beside_us if beside else 100) * US
            inputs = (shape if beside else "64,64", "float")
            run.call(host, host + 9 * US, "aten::mm", inputs=inputs)
            call = run.api(host + US, host + 2 * US, "cudaLaunchKernel")
            task = run.task(start, end, connection=call, kernel=("gemm", "gemm"))
            columns = dict.fromkeys(("name", "operation", "blockDim"), run.text("gemm"))
            columns["gridDim"] = run.text(grid if beside else "8,1,1")
            run.row("UPROF_GPU_TASKS", globalTaskId=task, **columns)
            if beside:
                run.all_reduce(start, end, 8 * MIB)
    finding = findings_by_kind(tmp_path / "run.db").get("contention")
    assert (finding is None) == (lost_us is None)
    if finding is not None and lost_us is not None:
        assert saving_ns(finding) == pytest.approx(10 * lost_us * US)
        assert "10 kernels that run 1.8 times as long next to collectives" in finding.text


def exposed_cost_us(path: Path) -> float:
    """Return the cost of exposed communication per step."""
    finding = findings_by_kind(path).get("exposed_communication")
    return 0 if finding is None else saving_ns(finding) / US


def test_only_one_bucket_of_a_large_last_message_is_exempt(tmp_path: Path) -> None:
    # 100 MiB in 400 µs: a bucket of 25 MiB takes 100 µs of that.
    message = (600 * US, STEP, 100 * MIB)
    path = steps(tmp_path / "run.db", message, compute=600 * US)
    finding = findings_by_kind(path)["exposed_communication"]
    assert saving_ns(finding) == 300 * US
    assert "10 % is the last bucket of each step" in finding.text
    assert finding.figures["last_bucket_ns"] == 4 * 100 * US


@pytest.mark.parametrize(("size", "says"), [(20 * MIB, True), (10, False), (200 * MIB, False)])
def test_rate_of_large_messages_is_named_if_it_is_low(
    tmp_path: Path, size: int, says: bool
) -> None:
    """Two messages are too few to tell waits from slow transfers."""
    with RunWithCollectives(tmp_path / "run.db", revision="latest") as run:
        run.step(0, 0, 20 * STEP)
        for begin in (0, 10 * STEP):
            run.kernel(begin, begin + 5 * STEP)
            run.all_reduce(begin + 5 * STEP, begin + 9 * STEP, size)
            run.kernel(begin + 9 * STEP, begin + 10 * STEP)
    one = findings_by_kind(tmp_path / "run.db")["exposed_communication"]
    assert ("large messages move 5.2 GB/s: a slow link, or waits" in one.text) == says
    assert ("compare the ranks" in one.advice) == says


@pytest.mark.parametrize("size", [8 * MIB, 800 * MIB])
def test_last_message_costs_its_whole_time_if_a_kernel_follows(tmp_path: Path, size: int) -> None:
    with RunWithCollectives(tmp_path / "run.db", revision="latest") as run:
        for begin in run.steps(5, STEP):
            run.kernel(begin, begin + 200 * US)
            run.all_reduce(begin + 200 * US, begin + 880 * US, size)
            run.kernel(begin + 900 * US, begin + STEP)
    assert exposed_cost_us(tmp_path / "run.db") == 680


def test_last_bucket_is_exempt_if_only_clipping_and_the_optimizer_follow(tmp_path: Path) -> None:
    with RunWithCollectives(tmp_path / "run.db", revision="latest") as run:
        for begin in run.steps(5, STEP):
            run.kernel(begin, begin + 500 * US, op_type="MatMulV2")
            run.all_reduce(begin + 500 * US, begin + 900 * US, 100 * MIB)
            run.kernel(begin + 900 * US, begin + STEP, op_type="ApplyAdamW")
    assert exposed_cost_us(tmp_path / "run.db") == 300


@pytest.mark.parametrize(("end", "fires"), [(700 * US, True), (520 * US, False)])
def test_receives_that_wait_for_a_stage_are_a_bubble(tmp_path: Path, end: int, fires: bool) -> None:
    with RunWithCollectives(tmp_path / "run.db", revision="latest") as run:
        for begin in run.steps(5, STEP):
            run.kernel(begin, begin + 500 * US)
            run.all_reduce(begin + 500 * US, begin + end, 400_000, kind="hcom_receive_", members=2)
            run.kernel(begin + end, begin + STEP)
    findings = findings_by_kind(tmp_path / "run.db")
    assert [*findings] == ["pipeline_bubble"] * fires
    if fires:  # 400 kB take 20 µs at 20 GB/s
        assert saving_ns(findings["pipeline_bubble"]) == 180 * US
        assert "micro-batches" in findings["pipeline_bubble"].advice


@pytest.mark.parametrize("retries", [1, 5])
def test_message_that_was_sent_again_is_a_retransmission(tmp_path: Path, retries: int) -> None:
    """If all messages have the flag, it only means that retries are enabled."""
    with RunWithCollectives(tmp_path / "run.db", revision="latest") as run:
        run.row("COMMUNICATION_TASK_INFO", globalTaskId=-1)
        for step, begin in enumerate(run.steps(5, STEP)):
            run.kernel(begin, begin + 300 * US)
            end = begin + (STEP if step == 2 else 350 * US)
            again = int(step == 2 or retries == 5)
            run.all_reduce(begin + 300 * US, end, 8 * MIB, retry=again)
            run.kernel(begin + 350 * US, begin + STEP) if step != 2 else None
    findings = findings_by_kind(tmp_path / "run.db")
    assert ("retransmission" in findings) == (retries == 1)
    if retries == 1:
        assert "waiting_for_ranks" not in findings
        assert saving_ns(findings["retransmission"]) == 650 * US // 4


def test_two_large_messages_at_the_end_cost_all_but_one_bucket(tmp_path: Path) -> None:
    messages = ((600 * US, 800 * US, 75 * MIB), (800 * US, STEP, 75 * MIB))
    path = steps(tmp_path / "run.db", *messages, compute=600 * US)
    assert exposed_cost_us(path) == pytest.approx(400 - 200 / 3, abs=0.01)


def test_overlapped_communication_is_no_finding(tmp_path: Path) -> None:
    assert advice(steps(tmp_path / "run.db", *AFTER_COMPUTE, compute=STEP)).findings == ()


def test_communication_in_a_group_of_one_is_no_finding(tmp_path: Path) -> None:
    path = steps(tmp_path / "run.db", *AFTER_COMPUTE, compute=600 * US, members=1)
    assert advice(path).findings == ()


@pytest.mark.parametrize(
    ("lengths_us", "cost_us"), [((160, 100, 100, 100), 60), ((160, 130, 115, 100), 0)]
)
def test_message_that_takes_longer_than_usual_waits_for_a_rank(
    tmp_path: Path, lengths_us: tuple[int, ...], cost_us: int
) -> None:
    """Its wait is less than half of its time; messages of any length are no wait."""
    messages, at = [], 400 * US
    for length_us in lengths_us:
        messages.append((at, at + length_us * US, 8 * MIB))
        at += length_us * US
    findings = findings_by_kind(steps(tmp_path / "run.db", *messages, compute=400 * US))
    assert ("waiting_for_ranks" in findings) == (cost_us > 0)
    if cost_us:
        assert saving_ns(findings["waiting_for_ranks"]) == cost_us * US


def test_time_beyond_the_transfer_is_a_wait_for_ranks(tmp_path: Path) -> None:
    # The larger message takes 50 µs, so the smaller one needs at most that: 350 of 400 are waits.
    messages = ((550 * US, 950 * US, 4 * MIB), (950 * US, STEP, 8 * MIB))
    findings = findings_by_kind(steps(tmp_path / "run.db", *messages, compute=550 * US))
    assert "exposed_communication" not in findings
    waiting = findings["waiting_for_ranks"]
    assert saving_ns(waiting) == 350 * US
    assert "uprof cluster" in waiting.advice
    assert "waiting for other ranks: 35 % of the time" in waiting.text
    assert " of it in one " not in waiting.text  # every step waits


def overlapped(path: Path, late_us: int) -> float:
    """Write five steps in which all-reduces of 90 us overlap kernels; return their length in us.

    The first of a step waits for another rank. Each needs the kernel before it.
    """
    with RunWithCollectives(path, revision="latest") as run:
        run.row("NPU_INFO", id=0, name="Ascend910B3")
        at = 0
        for step in range(5):
            begin = host = free = at
            for number in range(4):
                run.kernel(at, at + 100 * US, launched=host)
                at += 100 * US
                events = [
                    run.api(host + place * US, host + (place + 1) * US, name)
                    for place, name in enumerate(("aclrtRecordEvent", "aclrtStreamWaitEvent"), 3)
                ]
                run.task(at, at + 20, "EVENT_RECORD", stream=7, connection=events[0])
                start = max(at, free) + 500
                run.task(free, start, "EVENT_WAIT", stream=30, connection=events[1])
                launch = run.api(host + 6 * US, host + 8 * US, "launch")
                free = start + (90 + late_us * (number == 0)) * US
                run.task(start, free, "Notify Wait", stream=30, connection=launch)
                run.all_reduce(start, free, 8 * MIB, connection=launch)
                host += 10 * US
            at = max(at, free)
            run.api(host, at, "aclrtSynchronizeDevice")
            run.step(step, begin, at)
    return at / 5 / US


@pytest.mark.parametrize("late_us", [150, 200, 400])
def test_waits_cost_what_the_step_gains_also_behind_compute(tmp_path: Path, late_us: int) -> None:
    truth_us = overlapped(tmp_path / "late.db", late_us) - overlapped(tmp_path / "twin.db", 0)
    findings = findings_by_kind(tmp_path / "late.db")
    assert saving_ns(findings["waiting_for_ranks"]) / US == pytest.approx(truth_us, rel=0.03)
    total_us = sum(saving_ns(one) for one in findings.values()) / US
    assert total_us <= truth_us + 95
    assert "waiting_for_ranks" not in findings_by_kind(tmp_path / "twin.db")


@pytest.mark.parametrize("late", [0, 2])
def test_one_long_wait_is_named(tmp_path: Path, late: int) -> None:
    lengths = [50 * US] * 4
    lengths[late] = 600 * US
    messages, end = [], 100 * US
    for length in lengths:
        messages.append((end, end + length, 4 * MIB))
        end += length
    with RunWithCollectives(tmp_path / "run.db", revision="latest") as run:
        run.step(0, 0, STEP)
        run.kernel(0, 100 * US)
        for message in messages:
            run.all_reduce(*message)
    text = findings_by_kind(tmp_path / "run.db")["waiting_for_ranks"].text
    assert "; 550 µs of it in one all_reduce" in text
    assert ("the first recorded one of its group" in text) == (late == 0)


@pytest.mark.parametrize(
    ("late", "ranks", "named"), [((6,), 8, True), ((5, 6), 8, False), ((1,), 3, False)]
)
def test_the_only_late_peer_of_a_long_wait_is_named(
    tmp_path: Path, late: tuple[int, ...], ranks: int, named: bool
) -> None:
    """Of two peers, as in a ring, each may wait for another rank itself."""
    start, end = 150 * US, 750 * US
    with RunWithCollectives(tmp_path / "run.db", revision="latest") as run:
        run.step(0, 0, STEP)
        run.kernel(0, 100 * US)
        for begin in (100 * US, 750 * US, 800 * US):
            run.all_reduce(begin, begin + 50 * US, 4 * MIB)
        run.all_reduce(start, end, 4 * MIB)
        for peer in range(1, ranks):
            until = start + 560 * US if peer in late else start + 10 * peer * US
            task = run.task(start, until, "Notify Wait", stream=8 + peer)
            run.row("COMMUNICATION_TASK_INFO", globalTaskId=task, opId=4, dstRank=peer, size=0)
    text = findings_by_kind(tmp_path / "run.db")["waiting_for_ranks"].text
    clause = "; 550 µs of it in one all_reduce, which waits mostly for rank 6 of its group"
    assert (f"{clause};" in text) == named
    assert ("which waits" in text) == named


def test_many_small_messages_cost_their_latency(tmp_path: Path) -> None:
    large = (0, 100 * US, 10 * MIB)
    small = tuple((500 * US + at * 10 * US, 510 * US + at * 10 * US, 65536) for at in range(40))
    finding = findings_by_kind(steps(tmp_path / "run.db", large, *small, compute=500 * US))[
        "small_buckets"
    ]
    # 400 µs exposed; at the rate of the large message 40 x 64 KiB take 25 µs.
    assert saving_ns(finding) == 400 * US - 40 * 65536 * 100 * US // (10 * MIB)
    assert finding.figures["small"] == 4 * 40


def test_few_small_messages_are_no_finding(tmp_path: Path) -> None:
    messages = tuple((at * 100 * US, at * 100 * US + 90 * US, 10 * MIB) for at in range(9))
    path = steps(tmp_path / "run.db", *messages, (960 * US, STEP, 4), compute=960 * US)
    assert "small_buckets" not in findings_by_kind(path)


def test_communication_rules_are_skipped_without_collectives(tmp_path: Path) -> None:
    with FaultyRun(tmp_path / "run.db") as run:
        run.kernel(0, US)
    missing = {one.kind: one.why for one in advice(tmp_path / "run.db").not_judged}
    assert "COMMUNICATION_OP" in missing["exposed_communication"]


@pytest.mark.parametrize(("length", "found"), [(49 * US, False), (51 * US, True)])
def test_exposed_communication_from_five_percent(tmp_path: Path, length: int, found: bool) -> None:
    # A quarter of the message is the last bucket: its rest costs more than 3 % in both cases.
    message = (STEP - length, STEP, 100 * MIB)
    path = steps(tmp_path / "run.db", message, compute=STEP - length)
    assert ("exposed_communication" in findings_by_kind(path)) is found


@pytest.mark.parametrize("kernels", ["none", "between", "launched_before"])
def test_small_messages_are_found_if_nothing_is_launched_between(
    tmp_path: Path, kernels: str
) -> None:
    """Small messages between kernels, as of tensor parallelism, cannot be combined."""
    with RunWithCollectives(tmp_path / "run.db", revision="latest") as run:
        for begin in run.steps(5, STEP):
            run.kernel(begin, begin + 500 * US)
            for number, at in enumerate(range(500, 1000, 25)):
                start = begin + at * US
                launch, launched = 4294967295, None
                if kernels == "launched_before":
                    launched = begin + number * US
                    launch = run.api(launched + 100 * US, launched + 101 * US, "launch")
                    run.task(start, start + 20 * US, "Notify Wait", stream=30, connection=launch)
                run.all_reduce(start, start + 20 * US, 40_000, connection=launch)
                if kernels != "none":
                    run.kernel(start + 20 * US, start + 25 * US, launched=launched)
    with open_analyses(tmp_path / "run.db") as (analysis,):
        assert isinstance(analysis, MsprofAnalysis)
        (device,) = analysis.recording.devices
        context = DeviceContext(analysis.recording, device)
        assert bool([*small_buckets(context)]) is (kernels != "between")
    if kernels == "none":
        findings = findings_by_kind(tmp_path / "run.db")
        # 40 kB take 2 us of the 20 us of each message at 20 GB/s.
        assert saving_ns(findings["small_buckets"]) == 20 * 18 * US
        assert findings["small_buckets"].sure == "possible"
