"""Kernel sequences by operation, with their counts."""

from pathlib import Path

import pytest

from tests.analysis.builders import Device
from unified_prof.errors import UsageError
from unified_prof.explain.api import open_analyses
from unified_prof.recording.model import Row
from unified_prof.report import names


def rows(path: Path) -> list[Row]:
    with open_analyses(path) as (analysis,):
        return list(analysis.breakdown("sequence").rows)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "msprof_20260101000000.db"


def test_sequence_on_ascend_consists_of_operator_types(path: Path) -> None:
    """Kernel names on Ascend contain instance numbers: `trans_Cast_17`, `MatMul28`."""
    with Device(path) as device:
        device.row("NPU_INFO", id=0, name="Ascend910B3")
        for number in range(4):
            begin = 1000 * number
            device.call(begin, begin + 300, "aten::linear", launches=number + 1)
            for place, kind in enumerate(("Cast", "MatMulV2", "Cast")):
                start = begin + 500 + 50 * place
                kernel = (f"{kind}{3 * number + place}", kind)
                device.task(start, start + 10, connection=number + 1, kernel=kernel)
    (row,) = rows(path)
    assert (row.name, row.count, row.detail) == ("aten::linear", 4, "Cast → MatMulV2 → Cast")


def test_backward_operation_has_its_own_sequence(path: Path) -> None:
    with Device(path) as device:
        device.call(0, 10, "aten::linear", sequence=5)
        device.call(100, 200, "autograd::engine::evaluate_function: AddmmBackward0", thread=2)
        device.call(110, 190, "AddmmBackward0", thread=2, sequence=5, forward_thread=1, launches=1)
        for number in range(3):
            start = 300 + 100 * number
            device.task(start, start + 10, connection=1, kernel=("mm", "K"))
    (row,) = rows(path)
    assert (row.name, row.detail) == ("AddmmBackward0", "mm x3")


def test_sequence_breakdown_is_refused_if_no_operation_was_recorded(path: Path) -> None:
    with Device(path) as device:
        device.task(0, 10, kernel=("mm", "K"))
    with pytest.raises(UsageError, match="no framework operation was recorded"):
        rows(path)


def test_every_name_of_a_sequence_is_shortened() -> None:
    long = "void at::native::add<float>(int, float*) x2"
    assert names.readable_names([f"{long} → {long}"]) == ("add x2 → add x2",)
