"""The declared mapping matches the decoder, and the generated page shows it completely."""

import runpy
from pathlib import Path

from tests.conftest import ROOT
from tests.decoders.kineto.builders import (
    PID,
    TID,
    RowSink,
    call,
    complete,
    copy,
    decode_events,
    kernel,
    operation,
)
from unified_prof.decoders.kineto.events import CATEGORIES, Kind
from unified_prof.schema import catalogue

SCRIPT = runpy.run_path(str(ROOT / "scripts" / "make_kineto_mapping.py"))
MAPPINGS = SCRIPT["MAPPINGS"]


def decode_every_kind(tmp_path: Path) -> RowSink:
    """Decode a trace that has at least one event of every kind."""
    memory = {"Bytes": 8, "Addr": 1, "Device Id": 0, "Device Type": 1, "Total Allocated": 8}
    instant = {"ph": "i", "s": "t", "pid": PID, "tid": TID}
    group = {"pg_name": "0", "ranks": [0]}
    return decode_events(
        tmp_path,
        operation("aten::mm", 0, 50, args={"External id": 1, "Concrete Inputs": ["1"]}),
        complete("python_function", "a.py(1): f", 0, 900),
        complete("user_annotation", "ProfilerStep#1", 0, 90),
        complete("gpu_user_annotation", "x", 0, 90, pid=0, tid=7),
        complete("cuda_sync", "Context Sync", 60, 1, pid=0, tid=7, args={"stream": -1}),
        complete("python_gc", "collect", 62, 1),
        complete("overhead", "x", 63, 1),
        complete("gpu_memset", "Memset (Device)", 90, 1, pid=0, tid=7, args={"bytes": 1}),
        call(10, 1, 1),
        call(12, 1, 2),
        kernel(70, 1, 1),
        kernel(72, 1, 2, name="ncclDevKernel_AllReduce(x)"),
        copy(74, 1, 1, "Memcpy HtoD (Pinned -> Device)", 8),
        instant | {"name": "[memory]", "ts": 20, "args": memory},
        deviceProperties=[{"id": 0, "name": "GPU", "numSms": 1}],
        distributedInfo={"rank": 0, "pg_config": [group]},
    )


def test_written_tables_and_columns_are_those_declared(tmp_path: Path) -> None:
    sink = decode_every_kind(tmp_path)
    written = {table: set(rows[0]) for table, rows in sink.tables.items()}
    assert written == {mapping.table: set(mapping.columns) for mapping in MAPPINGS}
    assert sink.anomalies == {"task_without_launch": 1}


def test_garbage_collections_are_found_by_category_or_name(tmp_path: Path) -> None:
    sink = decode_events(
        tmp_path,
        complete("python_function", "a.py(1): f", 0, 900),
        complete("python_function", "Python GC", 62, 100, args={"Ev Idx": 3}),
        complete("python_gc", "collect", 300, 50),
        complete("user_annotation", "Python GC", 400, 70),
    )
    lengths = [row["endNs"] - row["startNs"] for row in sink.tables["GC_RECORD"]]
    assert lengths == [100_000, 50_000, 70_000]
    assert "PYTORCH_API" not in sink.tables


def test_declared_columns_exist_in_the_schema(tmp_path: Path) -> None:
    known = catalogue.newest_tables()
    for mapping in MAPPINGS:
        assert set(mapping.columns) <= set(known[mapping.table].column_names), mapping.table


def test_every_event_kind_except_flows_has_a_table() -> None:
    placed = {kind for mapping in MAPPINGS for kind in mapping.kinds}
    assert set(CATEGORIES.values()) <= placed
    assert set(Kind) - placed == {Kind.FLOW}


def test_uprof_tables_are_declared_extensions() -> None:
    own = {m.table for m in MAPPINGS if m.table.startswith("UPROF_")}
    assert own <= set(catalogue.extension_tables())


def test_generated_page_has_a_table_for_each_mapping() -> None:
    text = SCRIPT["as_markdown"]()
    for mapping in MAPPINGS:
        section = text.partition(f"### {mapping.table}\n")[2].partition("\n#")[0]
        rows = [line.split(" | ")[0] for line in section.splitlines() if line.startswith("| ")]
        assert rows[1:] == [f"| {column}" for column in mapping.columns], mapping.table
