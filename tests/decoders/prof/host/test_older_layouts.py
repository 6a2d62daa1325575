"""Records of CANN 7 to 8.2 give the same tables as those of later versions.

The layouts are those of the public headers: a collective's algorithm in 16 bits, launches without
a kernel name, marks without a domain. The headers between 8.0 and 8.5 mix older and current
layouts, so every mix is tested. Each recording is generated in the current layout, converted
on disk, and decoded twice.
"""

import json
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.decoders.prof.memory_sink import MemorySink
from tests.prof_generator import Recipe, generate
from unified_prof.decoders.prof.directory import ProfDirectory
from unified_prof.decoders.prof.layouts import record_type
from unified_prof.decoders.prof.recording import decode_recording
from unified_prof.pipeline.convert import convert
from unified_prof.sqlite.reader import open_report

Tables = dict[str, dict[str, NDArray[Any]]]
_RECIPE = Recipe(devices=(0, 1), operators=12, copies=2, collectives=3, marks=4)


def decode(path: Path) -> tuple[Tables, MemorySink]:
    sink = MemorySink()
    decode_recording(ProfDirectory(path), sink)
    return sink.tables(), sink


def rewrite(path: Path, kind: str, layout: str, change: Callable[[Any, Any], None]) -> None:
    """Change all records of a kind; `change` gets the records in the current and in `layout`."""
    files = [one for one in (path / "host/data").glob(f"*.{kind}.slice_*") if one.suffix != ".done"]
    assert files
    for file in files:
        raw = bytearray(file.read_bytes())
        before = np.frombuffer(bytes(raw), record_type(kind))
        change(before, np.frombuffer(raw, record_type(layout)))
        file.write_bytes(raw)


def old_operators(before: Any, records: Any) -> None:
    records["data_len"] = 20
    records["alg_type"] = 0x21  # MESH (1), then RING (2)
    records["count"], records["group_name"] = before["count"], before["group_name"]


def old_launches(before: Any, records: Any) -> None:
    records["data_len"] = 16
    records["kernel_name"] = 0xABCD  # Not part of the record: whatever was in memory.


def old_marks(before: Any, records: Any) -> None:
    records["message_type"], records["message"] = 3, before["message"]


def assert_same(found: Tables, expected: Tables, but: tuple[str, ...] = ()) -> None:
    assert set(found) == set(expected)
    for name, columns in expected.items():
        for column, values in columns.items():
            if column not in but:
                assert np.array_equal(found[name][column], values), (name, column)


def test_collectives_with_16_bits_for_the_algorithm(tmp_path: Path) -> None:
    path = generate(tmp_path, _RECIPE).path
    expected, _ = decode(path)
    assert set(expected["COMMUNICATION_OP"]["algType"]) == {"MESH-RING"}
    rewrite(path, "hccl_op_info", "hccl_op_info_v1", old_operators)
    found, sink = decode(path)
    assert_same(found, expected)
    assert not sink.anomalies


@pytest.mark.parametrize(
    ("stages", "text"),
    [(0, "NA"), (0x4, "HD"), (0x5321, "MESH-RING-NB-NHR"), (0x81F, "15-MESH-STAR")],
)
def test_stages_of_an_algorithm_are_named(stages: int, text: str, tmp_path: Path) -> None:
    path = generate(tmp_path, _RECIPE).path

    def change(before: Any, records: Any) -> None:
        old_operators(before, records)
        records["alg_type"] = stages

    rewrite(path, "hccl_op_info", "hccl_op_info_v1", change)
    found, _ = decode(path)
    assert set(found["COMMUNICATION_OP"]["algType"]) == {text}


def test_launches_without_a_kernel_name(tmp_path: Path) -> None:
    path = generate(tmp_path, _RECIPE).path
    expected, _ = decode(path)
    rewrite(path, "task_track", "task_track", old_launches)
    found, sink = decode(path)
    assert_same(found, expected)
    assert not sink.anomalies, "what follows the record is not looked up"


def test_marks_without_domains_keep_the_beginning_of_their_message(tmp_path: Path) -> None:
    path = generate(tmp_path, _RECIPE).path
    expected, _ = decode(path)
    rewrite(path, "msproftx", "msproftx_v1", old_marks)
    found, _ = decode(path)
    assert_same(found, expected, but=("domainId",))
    domains = zip(
        found["MSTX_EVENTS"]["connectionId"], found["MSTX_EVENTS"]["domainId"], strict=True
    )
    assert {domain for connection, domain in domains if connection > 4_000_000_000} == {"default"}


def test_cann_7_recording_without_newer_files_and_keys(tmp_path: Path) -> None:
    path = generate(tmp_path, _RECIPE).path
    expected, _ = decode(path)
    for kind in ("hccl_op_info", "memcpy_info", "node_attr_info"):
        for file in (path / "host/data").glob(f"*.{kind}.*"):
            file.unlink()
    rewrite(path, "task_track", "task_track", old_launches)
    rewrite(path, "msproftx", "msproftx_v1", old_marks)
    newer = {"cannVersion", "drvVersion", "rank_id", "jobInfo"}
    for file in path.rglob("info.json*"):
        if file.suffix != ".done":
            values = json.loads(file.read_text())
            file.write_text(json.dumps({k: v for k, v in values.items() if k not in newer}))
    found, sink = decode(path)
    assert set(found) == set(expected) - {"MEMCPY_INFO"}
    same = {name: rows for name, rows in expected.items() if name not in ("MEMCPY_INFO",)}
    assert_same(
        found, same, but=("domainId", "groupName", "relay", "retry", "dataType", "algType", "count")
    )
    operators = found["COMMUNICATION_OP"]
    assert set(operators["algType"]) == {"N/A"}
    assert set(operators["count"]) == {-1}
    assert not sink.anomalies


@pytest.mark.parametrize("older", list(product((True, False), repeat=3)))
def test_every_mix_of_older_records(older: tuple[bool, bool, bool], tmp_path: Path) -> None:
    path = generate(tmp_path, _RECIPE).path
    expected, _ = decode(path)
    is_old_operator, is_old_launch, is_old_mark = older
    if is_old_operator:
        rewrite(path, "hccl_op_info", "hccl_op_info_v1", old_operators)
    if is_old_launch:
        rewrite(path, "task_track", "task_track", old_launches)
    if is_old_mark:
        rewrite(path, "msproftx", "msproftx_v1", old_marks)
    found, sink = decode(path)
    assert_same(found, expected, but=("domainId",) if is_old_mark else ())
    assert not sink.anomalies


def row_counts(database: Path) -> dict[str, int]:
    with open_report(database, any_revision=True) as report:
        return {
            name: count
            for name in report.tables
            for ((count,),) in [report.rows(f'SELECT count(*) FROM "{name}"')]
        }


def test_cann_8_2_recording_loses_nothing_in_the_schema_of_its_exporter(tmp_path: Path) -> None:
    """Launches have no kernel name yet, algorithms are hashes and marks have a domain."""
    path = generate(tmp_path, _RECIPE).path
    rewrite(path, "task_track", "task_track", old_launches)
    newest = row_counts(convert(path, tmp_path / "newest.db").database)
    found = row_counts(convert(path, tmp_path / "8_2.db", schema="1.1.1_20250620").database)
    differ = {name for name in newest if found.get(name) != newest[name]}
    assert differ == {"ENUM_MODULE", "RANK_DEVICE_MAP"}, "a constant, and added in CANN 8.3"
    assert min(found[name] for name in ("TASK", "COMMUNICATION_OP", "MSTX_EVENTS")) > 0
