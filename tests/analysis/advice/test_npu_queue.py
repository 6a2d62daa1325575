"""NPU programs that enqueue faster than torch_npu's queue thread launches."""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path

import pytest

from tests.analysis.advice.faulty_runs import MS, US, FaultyRun, advice, findings_by_kind, saving_ns
from unified_prof.explain.api import open_analyses
from unified_prof.explain.msprof import MsprofAnalysis

QUEUE = 2  # Thread that launches.


class QueuedRun(FaultyRun):
    """Writes a program that enqueues operators on one thread and launches them on another."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, revision="latest")
        self._entries = 10_000

    def queued(self, enqueued: int, dequeued: int, until: int, *, takes: int, call: str) -> None:
        """Add an operator: its queue entry, the launch at its end, and a kernel after that."""
        self._entries += 1
        entry = self._entries
        self.call(enqueued, enqueued + US, "Enqueue@Conv2D", kind=50002, launches=entry)
        name = "Dequeue@Conv2D"
        self.call(dequeued, until, name, kind=50002, thread=QUEUE, launches=entry)
        self.api(dequeued + 100, until - 100, call, thread=QUEUE)
        launch = self.api(until - 2 * US, until - US, "launch", thread=QUEUE)
        self.task(until, until + takes, connection=launch, kernel=("Conv2D_1", "Conv2D"))


def write_queued(path: Path, lengths: list[int], *, compiles: Container[int] = ()) -> Path:
    """Write steps of 2 ms on the host, each with ten operators that take their share of a length.

    An operator runs on the device in the last tenth of its time; before, the queue thread prepares
    it, or compiles it in the steps `compiles`.
    """
    with QueuedRun(path) as run:
        at = 0
        for step, length in enumerate(lengths):
            begin = step * 2 * MS
            run.step(step, begin, begin + 2 * MS)
            run.call(begin, begin + 2 * MS, f"ProfilerStep#{step}")
            call = "aclopCompileAndExecute" if step in compiles else "aclnnConvolution"
            for operator in range(10):
                share = length // 10
                enqueued = begin + operator * 100 * US
                begun = max(at, enqueued + 2 * US)
                until = begun + share * 9 // 10
                run.queued(enqueued, begun, until, takes=share // 10 - US, call=call)
                at = begun + share
    return path


def test_steps_have_the_tasks_that_they_enqueued(tmp_path: Path) -> None:
    """The queue thread launches most of them after the last step of the program."""
    path = write_queued(tmp_path / "run.db", [10 * MS] * 6)
    with open_analyses(path) as (analysis,):
        assert isinstance(analysis, MsprofAnalysis)
        lengths = analysis.recording.step_lengths_ns
    assert lengths == pytest.approx([10 * MS] * 6, rel=0.01)


def test_compilation_on_the_queue_thread_costs_its_time(tmp_path: Path) -> None:
    path = write_queued(tmp_path / "run.db", [10 * MS] * 6, compiles=range(6))
    (finding,) = advice(path).findings
    assert finding.kind == "compile_stalls"
    assert saving_ns(finding) == pytest.approx(9 * MS, rel=0.05)


@pytest.mark.parametrize("behind", [True, False])
def test_compilation_is_in_the_function_that_enqueued_it(tmp_path: Path, behind: bool) -> None:
    """The program is in another function when the queue thread compiles the operator."""
    with QueuedRun(tmp_path / "run.db") as run:
        for begin in run.steps(6, 10 * MS):
            run.call(begin, begin + 4 * MS, "train.py(9): forward", kind=50003)
            run.call(begin + 4 * MS, begin + 9 * MS, "train.py(20): update", kind=50003)
            begun = begin + (5 if behind else 1) * MS
            call = "aclopCompileAndExecute"
            run.queued(begin + MS - US, begun, begun + 3 * MS, takes=MS, call=call)
    text = findings_by_kind(tmp_path / "run.db")["compile_stalls"].text
    assert "longest in forward at train.py:9" in text


def test_compilation_explains_the_slow_step_in_which_it_was_enqueued(tmp_path: Path) -> None:
    lengths = [10 * MS] * 4 + [40 * MS] + [10 * MS] * 3
    findings = findings_by_kind(write_queued(tmp_path / "run.db", lengths, compiles=[4]))
    assert saving_ns(findings["compile_stalls"]) == pytest.approx(36 * MS / 7, rel=0.01)
    assert "slow_steps" not in findings


def test_freed_memory_allocated_again_is_no_retry_after_operators(tmp_path: Path) -> None:
    """`empty_cache()` in each step: another thread launches what this one enqueues."""
    with QueuedRun(tmp_path / "run.db") as run:
        for step, begin in enumerate(run.steps(6, 20 * MS)):
            run.call(begin, begin + 20 * MS, f"ProfilerStep#{step}")
            run.queued(begin, begin + 2 * US, begin + 10 * US, takes=14 * MS, call="aclnnAdd")
            run.api(begin + 15 * MS, begin + 17 * MS, "aclrtFree")
            run.api(begin + 17 * MS, begin + 19 * MS, "aclrtMallocAlign32")
    findings = findings_by_kind(tmp_path / "run.db")
    assert "allocation_stalls" in findings
    assert "allocation_retries" not in findings


def test_recorded_stacks_slow_the_host(tmp_path: Path) -> None:
    with QueuedRun(tmp_path / "run.db") as run:
        for begin in run.steps(6, MS):
            run.call(begin, begin + MS, "train.py(9): step", kind=50003)
            for at in range(10):
                start = begin + at * 100 * US
                run.queued(start, start + US, start + 10 * US, takes=20 * US, call="aclnnAdd")
    finding = findings_by_kind(tmp_path / "run.db")["host_bound"]
    assert finding.sure == "likely"
    assert "(with_stack)" in finding.text
    assert "TASK_QUEUE_ENABLE=2" in finding.advice


def test_busy_queue_thread_has_nothing_left_to_take_over(tmp_path: Path) -> None:
    finding = findings_by_kind(write_queued(tmp_path / "run.db", [10 * MS] * 6))["host_bound"]
    assert "the thread of the task queue is busy for 100 % of it" in finding.text
    assert "TASK_QUEUE_ENABLE" not in finding.advice
    # The kernels take 1 ms of each step of 10 ms.
    assert saving_ns(finding) == pytest.approx(9 * MS, rel=0.02)


@pytest.mark.parametrize(
    ("call", "text", "setting"),
    [
        ("aclnnAddGetWorkspaceSize", "in calls of GetWorkspaceSize", "ACLNN_CACHE_LIMIT"),
        ("Add_Tiling", "in tiling of operators", "bucketed shapes"),
        ("aclnnAdd", "without a task queue", "TASK_QUEUE_ENABLE=1 or 2"),
    ],
)
def test_calls_of_a_host_bound_program_name_the_setting(
    tmp_path: Path, call: str, text: str, setting: str
) -> None:
    with FaultyRun(tmp_path / "run.db", revision="latest") as run:
        variables = '{"ASCEND_GLOBAL_LOG_LEVEL": "1"}'
        run.row("META_DATA", name="ENV_VARIABLES", value=variables)
        for at in range(100):
            begin = at * 100 * US
            run.api(begin, begin + 80 * US, call)
            run.call(begin, begin + 95 * US, "aten::add")
            run.kernel(begin + 90 * US, begin + 100 * US, launched=begin + 80 * US, takes=5 * US)
    finding = findings_by_kind(tmp_path / "run.db")["host_bound"]
    assert text in finding.text
    assert setting in finding.advice
    assert "CANN logs verbosely (ASCEND_GLOBAL_LOG_LEVEL=1)" in finding.text
