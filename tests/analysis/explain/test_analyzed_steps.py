"""Estimates are about the steps that `uprof advise` analyzes, with the same lengths."""

from pathlib import Path

import pytest

from tests.analysis.advice.faulty_runs import MS, US, FaultyRun, advice
from unified_prof.errors import UsageError
from unified_prof.explain.api import open_analyses
from unified_prof.explain.report_questions import Change


def write_run(path: Path, *, steps: int, queued_ms: int = 30) -> Path:
    """Write steps of 10 ms that the host launches behind kernels from before the recording."""
    with FaultyRun(path) as run:
        for at in range(queued_ms):
            run.kernel(at * MS, (at + 1) * MS)
        at = queued_ms * MS
        for begin in run.steps(steps, MS):
            run.kernel(at, at + 10 * MS, launched=begin + 10 * US)
            at += 10 * MS
    return path


@pytest.mark.parametrize(("steps", "analyzed"), [(1, 1), (2, 2), (4, 3)])
def test_estimates_have_the_steps_of_the_findings(
    tmp_path: Path, steps: int, analyzed: int
) -> None:
    """Tasks that were enqueued before the recording, and a first step, are not part of them."""
    path = write_run(tmp_path / "run.db", steps=steps)
    found = advice(path)
    with open_analyses(path) as (analysis,):
        faster = analysis.what_if([Change("kernel", 2)])
        tried = analysis.what_if([])
    for one in (faster, tried):
        assert one.steps == found.steps == analyzed
        assert one.before_ns / one.steps / MS == pytest.approx(found.step_ms, rel=1e-4)
        assert one.before_ns == pytest.approx(analyzed * 10 * MS, rel=1e-3)
        assert ("not analyzed: the first step" in one.limits) == (analyzed < steps)
    assert faster.gain is not None
    assert faster.gain.gain_ns == pytest.approx(analyzed * 5 * MS, rel=1e-3)
    assert faster.gain.changed_ns == pytest.approx(analyzed * 5 * MS, rel=1e-3)
    kernel = next(one for one in tried.candidates if one.name == "kernel")
    assert (kernel.on_path_ns, kernel.gain_ns) == pytest.approx(
        (analyzed * 10 * MS, analyzed * 5 * MS), rel=1e-3
    )


@pytest.mark.parametrize("loads_ms", [0, 8])
def test_time_of_the_device_is_named_if_the_path_is_longer(tmp_path: Path, loads_ms: int) -> None:
    with FaultyRun(tmp_path / "run.db") as run:
        run.api(0, loads_ms * MS + 2 * US, "cudaDeviceSynchronize")
        begin = loads_ms * MS
        run.kernel(begin + 10 * US, begin + 10 * MS, launched=begin + 5 * US)
    with open_analyses(tmp_path / "run.db") as (analysis,):
        (limit,) = (one for one in analysis.what_if([]).limits if "no steps recorded" in one)
    assert ("its device tasks span 9.99 ms" in limit) == (loads_ms > 0)


def test_device_without_a_name_is_named_as_the_reason(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run.db", steps=1, queued_ms=0)
    with (
        open_analyses(path) as (analysis,),
        pytest.raises(UsageError, match="model of device 0 was not recorded") as raised,
    ):
        analysis.what_if([], device="MI300X")
    assert raised.value.slug == "unknown-peaks"
