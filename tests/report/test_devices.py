"""Device comparison as text, Markdown and JSON."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.analysis.builders import Device
from tests.analysis.compare.device.recordings import GPU, Op, npu_recording, recording
from tests.analysis.explain import machine
from unified_prof.cli.app import app
from unified_prof.errors import UsageError


@pytest.fixture
def sides(tmp_path: Path) -> tuple[Path, Path]:
    return recording(tmp_path / "gpu.db"), npu_recording(tmp_path / "npu.db")


def uprof(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["diff", *map(str, arguments)])


@pytest.mark.slow
@pytest.mark.parametrize("form", ["text", "markdown", "json"])
def test_different_devices_get_no_verdict(sides: tuple[Path, Path], form: str) -> None:
    shown = uprof(*sides, "--format", form, "--all")
    assert shown.exit_code == 0
    for word in ("regression", "slower:", "faster:", "fail"):
        assert word not in shown.stdout.lower()
    if form != "json":
        assert "devices differ" in shown.stdout


@pytest.mark.slow
def test_device_without_a_name_is_reported(tmp_path: Path) -> None:
    named = recording(tmp_path / "a.db", model="AMD Instinct MI300X")
    bare = recording(tmp_path / "b.db", model=None)
    message = "was not recorded: times are shown without a verdict"
    assert f"the device of new {message}" in uprof(named, bare).stdout
    assert f"the device of base {message}" in uprof(bare, named).stdout
    other = recording(tmp_path / "c.db", GPU[:1], model=None)
    assert f"the device of base and new {message}" in uprof(bare, other).stdout


@pytest.mark.slow
def test_identical_recordings_are_reported_as_identical(tmp_path: Path) -> None:
    base, new = recording(tmp_path / "a.db", steps=6), recording(tmp_path / "b.db", steps=6)
    shown = uprof(base, new).stdout
    assert "both sides have identical figures" in shown
    assert "median step   9.90 µs on both sides" in shown
    assert "too few samples" not in shown
    assert "unclear" not in shown
    assert json.loads(uprof(base, new, "--json").stdout)["identical"] is True


@pytest.mark.slow
def test_identical_host_only_recordings_are_reported_as_identical(tmp_path: Path) -> None:
    paths = [tmp_path / "a.db", tmp_path / "b.db"]
    for path in paths:
        with Device(path) as device:
            for number in range(300):
                device.call(number * 10, number * 10 + 5, f"aten::op{number}")
    shown = uprof(*paths)
    assert "both sides have identical figures" in shown.stdout
    assert "300 rows hidden (--all shows them)" in shown.stdout
    assert len(shown.stdout.splitlines()) < 10
    assert "inconclusive" not in uprof(*paths, "--all", "--top", "400").stdout
    assert "inconclusive" not in uprof(*paths, "--json").stdout


def test_host_only_recording_is_not_compared_with_a_device_recording(tmp_path: Path) -> None:
    host = tmp_path / "host.db"
    with Device(host) as device:
        device.call(0, 100, "aten::linear")
    work = recording(tmp_path / "gpu.db")
    for command, sides in (("diff", (host, work)), ("gate", (work, host))):
        refused = CliRunner().invoke(app, [command, *map(str, sides)])
        assert isinstance(refused.exception, UsageError)
        expected = f"{work} has device work, {host} has host work only"
        assert expected in str(refused.exception)


@pytest.mark.slow
def test_same_device_gets_a_verdict_for_its_steps(tmp_path: Path) -> None:
    """Steps last until the device is done, although the host needs 50 µs in both recordings."""
    programs: list[list[machine.Action]] = [
        [*[machine.Launch("gemm", ns)] * 5, machine.EndStep()] * 6 for ns in (200_000, 1_000_000)
    ]
    base, new = (
        machine.write(machine.run(one), tmp_path / f"{number}.db", model="NVIDIA H100")
        for number, one in enumerate(programs)
    )
    (shown,) = (one for one in uprof(base, new).stdout.splitlines() if "median step" in one)
    assert shown.startswith("median step   1.00 ms -> 5.00 ms")
    found = json.loads(uprof(base, new, "--json").stdout)
    assert found["same_devices"] is True
    assert found["totals"]["total"]["verdict"] == "slower", "beyond any run-to-run variation"
    found = json.loads(uprof(base, base, "--json").stdout)
    assert found["totals"]["total"]["ratio"] == 1


@pytest.mark.parametrize("form", ["text", "json"])
def test_ratio_of_the_peaks_is_shown_with_the_measured_ratio(tmp_path: Path, form: str) -> None:
    base = recording(tmp_path / "a.db", model="NVIDIA H100 80GB HBM3")
    new = recording(tmp_path / "b.db", model="AMD Instinct MI300X VF")
    shown = uprof(base, new, "--format", form).stdout
    if form == "text":
        assert "attainable" in shown
        assert "0.76 x" in shown, "989 TFLOP/s by 1,307"
        assert "0.63 x" in shown, "3,350 GB/s by 5,300"
        assert "matmul, attention: bf16 989 TFLOP/s -> bf16 1,307 TFLOP/s;" in shown
        assert "memory 3,350 GB/s -> memory 5,300 GB/s; collectives: link 450 GB/s" in shown
        assert "attainable" not in uprof(base, base).stdout
        unknown = recording(tmp_path / "c.db", model="Some GPU")
        assert "attainable" not in uprof(base, unknown).stdout
    else:
        rows = {row["name"]: row for row in json.loads(shown)["breakdowns"]["class"]}
        assert rows["matmul"]["ratio_of_peaks"] == pytest.approx(989 / 1307, rel=1e-3)
        assert rows["normalization"]["ratio_of_peaks"] == pytest.approx(3350 / 5300, rel=1e-3)
        assert rows["matmul"]["ratio"] == 1


def test_json_has_every_row_and_adds_up(sides: tuple[Path, Path]) -> None:
    found = json.loads(uprof(*sides, "--json", "--top", "1").stdout)
    assert found["compared"] == "devices"
    assert found["base"] == str(sides[0])
    assert list(found["breakdowns"]) == ["class", "operation", "module", "line", "kernel"]
    for rows in found["breakdowns"].values():
        for side in ("base", "new"):
            total = sum(row[side]["total_ns"] for row in rows if row[side])
            assert total == found["sides"][side]["work_ns"]
    for side in ("base", "new"):
        parts = sum(part[f"{side}_total_ns"] for part in found["parts"])
        assert parts == found["sides"][side]["window_ns"]
    (cast,) = [row for row in found["breakdowns"]["operation"] if row["side"] == "new"]
    assert (cast["class"], cast["base"], cast["ratio"]) == ("cast and format", None, None)
    assert cast["kernels"][0]["name"] == "trans_TransData_1"
    assert found["sides"]["new"]["devices"] == ["Ascend910B"]


def test_large_ratios_have_no_decimals_and_small_ones_are_not_zero(tmp_path: Path) -> None:
    fast, slow = ([Op("aten::linear", [("gemm", "aten::mm", took)])] for took in (1, 900))
    base, new = recording(tmp_path / "a.db", fast), recording(tmp_path / "b.db", slow)
    shown = uprof(base, new).stdout
    assert "900 x" in shown
    assert "900.00" not in shown
    back = uprof(new, base).stdout
    assert "<0.01 x" in back
    assert "0.00 x" not in back


def test_row_names_the_calls_of_both_sides(tmp_path: Path) -> None:
    one = Op("aten::linear", [("gemm", "aten::mm", 10)])
    base, new = recording(tmp_path / "a.db", [one, one]), recording(tmp_path / "b.db", [one])
    assert re.search(r"^matmul +linear +2 -> 1  ", uprof(base, new).stdout, re.MULTILINE)


@pytest.mark.slow
def test_names_of_any_length_and_content_stay_on_one_line(tmp_path: Path) -> None:
    odd = [
        Op("aten::linear", [("gemm" * 10_000, "aten::mm", 10)], "M\x1b[31m_0"),
        Op("x\u202e\n|y" * 50, [("<script>", "aten::mm", 10)], "N" * 5000),
    ]
    base, new = recording(tmp_path / "a.db", odd), npu_recording(tmp_path / "b.db", odd)
    for form in ("text", "markdown"):
        for by in ("operation", "kernel", "module"):
            shown = uprof(base, new, "--format", form, "--by", by)
            assert shown.exit_code == 0
            assert "\x1b" not in shown.stdout
            assert "\u202e" not in shown.stdout
            assert max(map(len, shown.stdout.splitlines())) < 800
    assert json.loads(uprof(base, new, "--json").stdout)
