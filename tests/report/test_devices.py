"""The comparison of devices in words, Markdown and JSON: from the step downwards, no verdict."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.analysis.builders import Device
from tests.analysis.compare.device.recordings import GPU, Op, on_npu, recording
from tests.analysis.explain import made
from unified_prof.cli.app import app
from unified_prof.errors import UprofError, UsageError


@pytest.fixture
def sides(tmp_path: Path) -> tuple[Path, Path]:
    return recording(tmp_path / "gpu.db"), on_npu(tmp_path / "npu.db")


def uprof(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["diff", *map(str, arguments)])


def sections(text: str) -> dict[str, list[str]]:
    """Return the tables by heading."""
    blocks = [block.splitlines() for block in text.split("\n\n")]
    return {block[0]: block[1:] for block in blocks}


def test_the_headline_names_both_devices_and_their_steps(sides: tuple[Path, Path]) -> None:
    lines = uprof(*sides).stdout.splitlines()
    assert lines[0] == f"{sides[0]} -> {sides[1]}"
    assert "base          NVIDIA H100; 2 steps" in lines
    assert "new           Ascend910B; 2 steps" in lines
    assert any(line.startswith("step ") and " x)" in line for line in lines)


def test_it_goes_from_the_step_downwards(sides: tuple[Path, Path]) -> None:
    tables = sections(uprof(*sides).stdout)
    assert list(tables)[1:] == ["One step", "Kernel time by class", "Slower in new", "Only in new"]
    assert tables["One step"][1].startswith("step ")
    assert tables["Kernel time by class"][-1].split()[:4] == ["total", "7", "9", "790"]
    first = tables["Slower in new"][1]
    assert "scaled_dot_product_attention x1" in first
    assert "2.33 x" in first
    assert any("linear x2" in line and "1.50 x" in line for line in tables["Slower in new"])
    assert "cast and format" in tables["Only in new"][1]


@pytest.mark.parametrize("form", ["text", "markdown", "json"])
def test_other_devices_get_no_verdict(sides: tuple[Path, Path], form: str) -> None:
    told = uprof(*sides, "--format", form, "--all")
    assert told.exit_code == 0
    for word in ("regression", "slower:", "faster:", "fail"):
        assert word not in told.stdout.lower()
    if form != "json":
        assert "devices differ" in told.stdout


def test_of_two_devices_the_one_without_a_name_is_said_to_have_none(tmp_path: Path) -> None:
    named = recording(tmp_path / "a.db", model="AMD Instinct MI300X")
    bare = recording(tmp_path / "b.db", model=None)
    told = "was not recorded: times are shown without a verdict"
    assert f"the device of new {told}" in uprof(named, bare).stdout
    assert f"the device of base {told}" in uprof(bare, named).stdout
    other = recording(tmp_path / "c.db", GPU[:1], model=None)
    assert f"the device of base and new {told}" in uprof(bare, other).stdout


def test_a_recording_beside_itself_is_equal_in_few_rows(tmp_path: Path) -> None:
    base, new = recording(tmp_path / "a.db", steps=6), recording(tmp_path / "b.db", steps=6)
    told = uprof(base, new).stdout
    assert "both sides have identical figures" in told
    assert "median step   9.90 µs on both sides" in told
    assert "too few samples" not in told
    assert "unclear" not in told
    assert json.loads(uprof(base, new, "--json").stdout)["identical"] is True


def test_of_the_host_alone_too(tmp_path: Path) -> None:
    paths = [tmp_path / "a.db", tmp_path / "b.db"]
    for path in paths:
        with Device(path) as device:
            for number in range(300):
                device.call(number * 10, number * 10 + 5, f"aten::op{number}")
    told = uprof(*paths)
    assert "both sides have identical figures" in told.stdout
    assert "300 rows hidden (--all shows them)" in told.stdout
    assert len(told.stdout.splitlines()) < 10
    assert "inconclusive" not in uprof(*paths, "--all", "--top", "400").stdout
    assert "inconclusive" not in uprof(*paths, "--json").stdout


def test_the_host_alone_is_not_compared_with_a_device(tmp_path: Path) -> None:
    host = tmp_path / "host.db"
    with Device(host) as device:
        device.call(0, 100, "aten::linear")
    work = recording(tmp_path / "gpu.db")
    for command, sides in (("diff", (host, work)), ("gate", (work, host))):
        refused = CliRunner().invoke(app, [command, *map(str, sides)])
        assert isinstance(refused.exception, UsageError)
        said = str(refused.exception)
        assert f"{work} has device work, {host} has host work only" in said


def test_one_device_before_and_after_gets_the_verdict_of_its_steps(tmp_path: Path) -> None:
    """Of steps until the device is done with them: the host of both is done in 50 µs."""
    programs: list[list[made.Action]] = [
        [*[made.Launch("gemm", ns)] * 5, made.Step()] * 6 for ns in (200_000, 1_000_000)
    ]
    base, new = (
        made.write(made.run(one), tmp_path / f"{number}.db", model="NVIDIA H100")
        for number, one in enumerate(programs)
    )
    (told,) = (one for one in uprof(base, new).stdout.splitlines() if "median step" in one)
    assert told.startswith("median step   1.00 ms -> 5.00 ms")
    found = json.loads(uprof(base, new, "--json").stdout)
    assert found["same_devices"] is True
    assert found["totals"]["total"]["verdict"] == "slower", "no run alone differs so much"
    found = json.loads(uprof(base, base, "--json").stdout)
    assert found["totals"]["total"]["ratio"] == 1


@pytest.mark.parametrize("form", ["text", "json"])
def test_the_ratio_that_the_peaks_allow_stands_beside_that_of_the_times(
    tmp_path: Path, form: str
) -> None:
    base = recording(tmp_path / "a.db", model="NVIDIA H100 80GB HBM3")
    new = recording(tmp_path / "b.db", model="AMD Instinct MI300X VF")
    told = uprof(base, new, "--format", form).stdout
    if form == "text":
        assert "attainable" in told
        assert "0.76 x" in told, "989 TFLOP/s by 1,307"
        assert "0.63 x" in told, "3,350 GB/s by 5,300"
        assert "attainable" not in uprof(base, base).stdout
        unknown = recording(tmp_path / "c.db", model="Some GPU")
        assert "attainable" not in uprof(base, unknown).stdout
    else:
        rows = {row["name"]: row for row in json.loads(told)["breakdowns"]["class"]}
        assert rows["matmul"]["ratio_of_peaks"] == pytest.approx(989 / 1307, rel=1e-3)
        assert rows["normalisation"]["ratio_of_peaks"] == pytest.approx(3350 / 5300, rel=1e-3)
        assert rows["matmul"]["ratio"] == 1


def test_json_has_every_row_and_its_sums(sides: tuple[Path, Path]) -> None:
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


def test_kernels_stand_under_their_operation_and_by_name(sides: tuple[Path, Path]) -> None:
    tables = sections(uprof(*sides, "--by", "kernel", "--top", "50").stdout)
    under = tables["Kernels under each operation"]
    at = next(i for i, line in enumerate(under) if line.startswith("matmul "))
    assert {"nvjet_tst_64x8", "aclnnMatmul_1"} < set(" ".join(under[at : at + 2]).split())
    assert any("aclnnFlash" in line for line in tables["Kernels by name"])


@pytest.mark.parametrize("by", ["module", "line", "class", "shape"])
def test_other_ways_to_divide_it(sides: tuple[Path, Path], by: str) -> None:
    told = uprof(*sides, "--by", by)
    assert told.exit_code == 0
    if by == "module":
        assert "Mlp_0" in told.stdout
    if by == "class":
        assert "Takes longer" not in told.stdout


def test_a_large_ratio_has_no_decimals(tmp_path: Path) -> None:
    fast, slow = ([Op("aten::linear", [("gemm", "aten::mm", took)])] for took in (1, 900))
    told = uprof(recording(tmp_path / "a.db", fast), recording(tmp_path / "b.db", slow)).stdout
    assert "900 x" in told
    assert "900.00" not in told


def test_a_small_ratio_is_not_shown_as_nothing(tmp_path: Path) -> None:
    fast, slow = ([Op("aten::linear", [("gemm", "aten::mm", took)])] for took in (1, 900))
    told = uprof(recording(tmp_path / "a.db", slow), recording(tmp_path / "b.db", fast)).stdout
    assert "<0.01 x" in told
    assert "0.00 x" not in told


def test_rows_beyond_the_limit_are_counted(sides: tuple[Path, Path]) -> None:
    assert "and 4 more (--top)" in uprof(*sides, "--top", "1").stdout


def test_names_of_any_length_and_content_stay_on_their_line(tmp_path: Path) -> None:
    odd = [
        Op("aten::linear", [("gemm" * 10_000, "aten::mm", 10)], "M\x1b[31m_0"),
        Op("x\u202e\n|y" * 50, [("<script>", "aten::mm", 10)], "N" * 5000),
    ]
    base, new = recording(tmp_path / "a.db", odd), on_npu(tmp_path / "b.db", odd)
    for form in ("text", "markdown"):
        for by in ("operation", "kernel", "module"):
            told = uprof(base, new, "--format", form, "--by", by)
            assert told.exit_code == 0
            assert "\x1b" not in told.stdout
            assert "\u202e" not in told.stdout
            assert max(map(len, told.stdout.splitlines())) < 800
    assert json.loads(uprof(base, new, "--json").stdout)


def test_tracked_workloads_have_no_kernels_to_divide_by(tmp_path: Path) -> None:
    from tests.analysis.builders import run_time_report

    report = run_time_report(tmp_path / "run_time.sqlite")
    told = uprof(report, report, "--by", "kernel")
    assert isinstance(told.exception, UprofError)
    assert told.exception.exit_code == 2
    assert "--by kernel" in str(told.exception)
