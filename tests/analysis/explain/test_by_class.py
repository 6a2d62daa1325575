"""Device time by kernel class."""

from pathlib import Path

from tests.analysis.builders import Device, training_step
from unified_prof.explain.api import open_analyses


def test_classes_add_up_to_all_device_time(tmp_path: Path) -> None:
    training_step(path := tmp_path / "msprof_20260101000000.db")
    with open_analyses(path) as (analysis,):
        found = analysis.breakdown("class")
        rows = {row.name: row for row in found.rows}
        assert found.total_ns == analysis.breakdown("kernel").total_ns
        assert rows["matmul"].total_ns == 100 + 150
        assert rows["collectives"].total_ns == 200
        assert rows["copies"].total_ns == 40
        assert rows["optimizer"].total_ns == 30
        assert "class" not in analysis.summary.available


def test_class_names_its_longest_operation(tmp_path: Path) -> None:
    with Device(path := tmp_path / "msprof_20260101000000.db") as device:
        device.call(0, 100, "aten::softmax", launches=1)
        device.call(200, 300, "aten::sum", launches=2)
        device.task(400, 410, connection=1, kernel=("cunn_SoftMaxForward", "K"))
        device.task(500, 600, connection=2, kernel=("reduce_kernel", "K"))
        device.task(700, 800, kernel=("who_knows_q", "who_knows_q"))
    with open_analyses(path) as (analysis,):
        rows = {row.name: row for row in analysis.breakdown("class").rows}
    assert (rows["reduction"].count, rows["reduction"].detail) == (2, "aten::sum")
    assert (rows["other"].count, rows["other"].detail) == (1, "who_knows_q")
