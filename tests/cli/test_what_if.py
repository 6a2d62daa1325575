"""`uprof advise --what-if`, its formats, and `unified_prof.what_if`."""

import json
from pathlib import Path

import pytest

import unified_prof
from tests.analysis import builders
from tests.analysis.explain import machine
from tests.analysis.explain.machine import Action, EndStep, Launch, Synchronize
from tests.analysis.explain.roofline.test_of_recording import write_gpu_step
from tests.sql import execute
from unified_prof.cli.app import main
from unified_prof.errors import UsageError
from unified_prof.explain.api import open_analyses
from unified_prof.explain.what_if import SPREAD
from unified_prof.pipeline.convert import convert

US = 1_000


@pytest.fixture
def two_steps(tmp_path: Path) -> Path:
    """Write a recording of two steps in which the device is the bottleneck."""
    program: list[Action] = []
    for long in (1, 3):
        program += [*[Launch("mm_1", long * 100 * US)] * 10, Synchronize(), EndStep()]
    return machine.write(machine.run(program), tmp_path / "msprof_1.db")


def run(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["what-if", *words])
    assert ended.value.code == code
    captured = capsys.readouterr()
    return captured.out if code == 0 else captured.err


def test_overlapped_savings_are_hidden(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program: list[Action] = [*[Launch("mm_1", 10 * US, before_ns=50 * US)] * 10, EndStep()]
    path = machine.write(machine.run(program), tmp_path / "a.db")
    text = run(capsys, str(path), "--without", "mm_1")
    assert "mm_1 is gone" in text
    assert "hidden        the changed work itself takes 100 µs less" in text


def test_most_expensive_items_are_tried_if_no_change_is_given(
    two_steps: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = json.loads(run(capsys, str(two_steps), "--json"))
    assert (document["format"], document["version"]) == ("uprof-what-if", 1)
    (report,) = document["reports"]
    assert report["after_ns"] is None
    found = {row["name"]: row for row in report["worth"]}
    assert found["mm_1"]["gain_ns"] == found["kernel"]["gain_ns"] == 2_000 * US
    assert found["mm_1"]["on_path_ns"] == 4_000 * US
    gains = [row["gain_ns"] for row in report["worth"]]
    assert gains == sorted(gains, reverse=True)
    assert "2x faster" in run(capsys, str(two_steps))


def test_range_gains_its_host_work_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    launches: list[Action] = [Launch("mm_1", 10 * US, before_ns=50 * US)] * 20
    program = [*launches, Synchronize(operation="aten::op"), EndStep()]
    path = machine.write(machine.run(program), tmp_path / "msprof_1.db")
    (report,) = json.loads(run(capsys, str(path), "--json"))["reports"]
    kinds = [row["kind"] for row in report["worth"] if row["name"] == "host:aten::op"]
    assert kinds == ["host"], "the gain of its wait alone is that of all synchronizations"


def test_savings_are_per_recording_if_there_are_no_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program: list[Action] = [*[Launch("mm_1", 100 * US)] * 10, Synchronize()]
    path = str(machine.write(machine.run(program), tmp_path / "a.db"))
    tried, requested = run(capsys, path), run(capsys, path, "--faster", "mm_1=2")
    assert "saved per recording" in tried
    assert "then          saves 500 µs" in requested
    assert "a step" not in tried + requested


def test_empty_recording_is_refused(tmp_path: Path) -> None:
    with builders.Device(tmp_path / "a.db") as device:
        device.row("NPU_INFO", id=0, name="Ascend910B")
    with pytest.raises(UsageError, match="neither device tasks nor host ranges"):
        unified_prof.what_if(tmp_path / "a.db")


def test_what_if_function_returns_estimates(two_steps: Path) -> None:
    (found,) = unified_prof.what_if(two_steps, faster={"mm_1": 2})
    assert found.gain is not None
    assert found.gain.per_step_ns == 1_000 * US
    (found,) = unified_prof.what_if(two_steps, without=["mm_1"])
    assert found.gain is not None
    assert found.gain.per_step_ns > 1_900 * US
    # A single name is accepted as a string.
    assert unified_prof.what_if(two_steps, without="mm_1") == [found]


def test_kernels_on_another_device_keep_the_time_that_the_roofline_does_not_explain(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_gpu_step(tmp_path / "a.db")
    (answer,) = json.loads(run(capsys, str(path), "--device", "MI300X", "--json"))["reports"]
    device = answer["device"]
    matmul, other = device["classes"]
    # A product of 40 us: its FLOPs at 989 TFLOP/s (bf16) become those at 1,307 TFLOP/s.
    at_peak_ns = 2 * 1024 * 4096 * 2048 / 989e12 * 1e9
    after_ns = 40_000 - at_peak_ns * (1 - 989 / 1307)
    assert (device["source"], device["target"]) == ("H100 80GB HBM3", "MI300X")
    assert (matmul["name"], matmul["total_ns"]) == ("matmul", 40_000)
    assert matmul["total_ns"] * matmul["factor"] == pytest.approx(after_ns)
    # Without shapes: the same efficiency, and the ratio of memory bandwidths.
    share = at_peak_ns / 40_000
    assert other["efficiency"] is None
    assert other["factor"] == pytest.approx(1 - share + share * 3350 / 5300)
    assert device["least_ns"] <= answer["after_ns"] <= device["most_ns"]


def test_another_device_has_a_path(two_steps: Path, capsys: pytest.CaptureFixture[str]) -> None:
    execute(two_steps, "INSERT INTO NPU_INFO (id, name) VALUES (0, 'NVIDIA H100 80GB HBM3')")
    text = run(capsys, str(two_steps), "--device", "H100 80GB HBM3")
    assert "kernels ran on H100 80GB HBM3, the recorded device\n" in text
    # The same device: nothing changes; the device is the bottleneck of both steps (4.05 ms).
    assert "then          2.02 ms per step instead of 2.02 ms (1.27 ms to 3.22 ms" in text


@pytest.mark.slow
@pytest.mark.parametrize("model", ["bert-small", "vit"])
def test_kernel_time_elsewhere_is_in_its_interval(shared: Path, tmp_path: Path, model: str) -> None:
    """Two models of TraceLens on H100 and MI300X, in both directions."""
    names = {"h100": "H100 80GB HBM3", "mi300": "MI300X"}
    times: dict[str, dict[str, float]] = {}
    for source, other in (("h100", "mi300"), ("mi300", "h100")):
        trace = shared / "samples" / "kineto" / f"{source}_{model}.json.gz"
        convert(trace, tmp_path / f"{source}.db")
        with open_analyses(tmp_path / f"{source}.db") as (analysis,):
            found = analysis.what_if([], device=names[other]).device
        assert found is not None
        times[source] = {
            "recorded": sum(one.total_ns for one in found.classes),
            "estimated": sum(one.total_ns * one.factor for one in found.classes),
        }
    for source, other in (("h100", "mi300"), ("mi300", "h100")):
        ratio = times[source]["estimated"] / times[other]["recorded"]
        assert 1 / SPREAD <= ratio <= SPREAD
