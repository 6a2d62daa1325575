"""`uprof run --batch-sizes`: throughput, memory and the largest batch."""

import json
from pathlib import Path

import pytest

from tests.cli.test_run_cpu import providers
from tests.sql import run_facts
from unified_prof.base.run_spec import RunSpec
from unified_prof.cli.app import main
from unified_prof.errors import UsageError
from unified_prof.explain.api import Measured, fit
from unified_prof.pipeline.run_summary import BatchSizes

MIB = 1 << 20


def peaks(*sizes: tuple[int, int]) -> list[Measured]:
    return [Measured(size, 10.0, peak * MIB) for size, peak in sizes]


def test_largest_batch_is_computed_from_the_line_fitted_to_peak_memory() -> None:
    found = fit(peaks((8, 180), (16, 260), (32, 420)), 1100 * MIB)
    assert found is not None
    assert found.bytes_per_sample == pytest.approx(10 * MIB)
    assert found.fixed_bytes == pytest.approx(100 * MIB)
    assert found.error_bytes == pytest.approx(0, abs=1)
    assert found.largest_without_error in (99, 100)


def test_scatter_around_the_fitted_line_lowers_the_largest_batch() -> None:
    found = fit(peaks((8, 180), (16, 290), (24, 340)), 1100 * MIB)
    assert found is not None
    assert found.error_bytes is not None
    assert found.error_bytes == pytest.approx(20 * MIB, rel=0.01)
    assert found.largest_batch is not None
    assert found.largest_without_error is not None
    assert found.largest_batch < found.largest_without_error


def test_two_sizes_give_no_error_estimate_and_one_gives_no_fit() -> None:
    two = fit(peaks((8, 180), (16, 260)), None)
    assert two is not None
    assert two.error_bytes is None
    assert two.largest_batch is None
    assert fit(peaks((8, 180))) is None
    assert fit([Measured(8, 1.0, None), Measured(16, 1.0, None)]) is None


def test_batch_size_that_never_fits_is_reported() -> None:
    found = fit(peaks((8, 180), (16, 260)), 50 * MIB)
    assert found is not None
    assert found.largest_batch is None


def spec() -> RunSpec:
    here = Path()
    return RunSpec(target="t.py", reports=("run-time",), output_dir=here, project_root=here)


@pytest.mark.parametrize(
    ("sizes", "memory"), [("0,8", None), ("a", None), ("", None), ("8", "much"), (None, "1GiB")]
)
def test_invalid_sizes_are_refused(sizes: str | None, memory: str | None) -> None:
    with pytest.raises(UsageError):
        BatchSizes.parse(sizes, memory, spec())


def test_sizes_run_once_each_in_ascending_order() -> None:
    batches = BatchSizes.parse("32, 8,8", "2GiB", spec())
    assert [one.batch_size for one in batches.specs] == [8, 32]
    assert batches.memory_bytes == 2 << 30


def test_script_runs_once_for_each_size(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    script = providers(inputs="print('batch', batch_size); return (torch.ones(batch_size, 4),)")
    Path("net.py").write_text(script)
    words = "run --backend cpu -o out --iterations 2 --batch-sizes 4,2 --memory 1GiB --json net.py"
    with pytest.raises(SystemExit) as ended:
        main(words.split())
    assert not ended.value.code
    printed = capfd.readouterr()
    assert "batch 4" in printed.err
    document = json.loads(printed.out)  # and nothing else
    assert [one["batch_size"] for one in document["batch_sizes"]] == [2, 4]
    for one in document["batch_sizes"]:
        assert one["samples_per_s"] == pytest.approx(one["batch_size"] / one["iteration_ms"] * 1e3)
    facts = run_facts("out/batch-4/run_time.sqlite")
    assert facts["batch_size"] == "4"


@pytest.mark.slow
def test_failing_size_ends_the_series(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    failing = "assert batch_size < 4; return (torch.ones(batch_size, 4),)"
    Path("net.py").write_text(providers(inputs=failing))
    words = "run --backend cpu -o out --iterations 2 --batch-sizes 2,4,8 net.py"
    with pytest.raises(SystemExit) as ended:
        main(words.split())
    assert ended.value.code == 1
    assert "batch 4: the workload exited with code 1" in capfd.readouterr().err
    assert not Path("out/batch-8").exists()


def test_script_alone_has_no_batch_sizes(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    Path("train.py").write_text("import torch\ntorch.ones(3).sum()\n")
    with pytest.raises(SystemExit) as ended:
        main("run --backend cpu -o out --batch-sizes 2,4 train.py".split())
    assert ended.value.code
    assert "no providers" in capfd.readouterr().err
