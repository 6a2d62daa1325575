"""Exports of `nsys export --type parquetdir`: the same tables as Parquet files."""

import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.decoders.kineto.builders import RowSink
from tests.decoders.nsys.builders import decode, packed, pushed, small, write
from unified_prof.decoders import nsys
from unified_prof.decoders.nsys.columns import ParquetTables
from unified_prof.errors import RawFormatError
from unified_prof.pipeline.convert import convert
from unified_prof.pipeline.sources import find_source


def as_parquet(export: Path, folder: Path) -> Path:
    import pyarrow as arrow  # Part of the extra `dev`, so that these tests never skip.
    import pyarrow.parquet as parquet

    folder.mkdir()
    with closing(sqlite3.connect(export)) as db:
        for (table,) in db.execute("SELECT name FROM sqlite_master").fetchall():
            cursor = db.execute(f'SELECT * FROM "{table}"')
            names = [column[0] for column in cursor.description]
            columns = list(zip(*cursor.fetchall(), strict=True)) or [() for _ in names]
            parquet.write_table(
                arrow.table(dict(zip(names, columns, strict=True))), folder / f"{table}.parquet"
            )
    return folder


def test_parquet_and_sqlite_exports_give_equal_tables(tmp_path: Path) -> None:
    tables = small(
        NVTX_EVENTS=[
            pushed(1_000, 1_500, "aten::mm, op_id = 3"),
            pushed(10, None, "open", int64Value=5),
            {**pushed(40, 50, "mark"), "eventType": 34},
        ],
        PROCESSES=[{"globalPid": packed(), "name": "python"}],
    )
    export = write(tmp_path / "run.sqlite", tables)
    folder = as_parquet(export, tmp_path / "run_pqtdir")
    wanted, sink = decode(export), RowSink()
    nsys.decode(folder, ParquetTables(folder), sink)
    assert repr(sink.tables) == repr(wanted.tables)  # NaN is not equal to itself
    assert sink.anomalies == wanted.anomalies
    source = find_source(folder)
    assert source is not None
    assert source.kind == "nsys"
    assert convert(folder, tmp_path / "r.db").rows["TASK"] == 1


def test_damaged_parquet_file_is_named_in_the_error(tmp_path: Path) -> None:
    folder = as_parquet(write(tmp_path / "run.sqlite", small()), tmp_path / "run_pqtdir")
    damaged = folder / "NVTX_EVENTS.parquet"
    whole = damaged.read_bytes()
    for cut in (0, 3, len(whole) // 2, len(whole) - 1):
        damaged.write_bytes(whole[:cut])
        with pytest.raises(RawFormatError, match=r"NVTX_EVENTS\.parquet cannot be read"):
            nsys.decode(folder, ParquetTables(folder), RowSink())
    for at in range(4, len(whole) - 8, 61):
        damaged.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        try:
            nsys.decode(folder, ParquetTables(folder), RowSink())
        except RawFormatError as err:
            assert "NVTX_EVENTS.parquet" in str(err)  # noqa: PT017


@pytest.mark.slow
def test_flipped_bit_of_any_byte_of_a_footer_is_harmless_or_named(tmp_path: Path) -> None:
    folder = as_parquet(write(tmp_path / "run.sqlite", small()), tmp_path / "run_pqtdir")
    (damaged,) = folder.glob("CUPTI_ACTIVITY_KIND_KERNEL.parquet")
    whole = damaged.read_bytes()
    size = int.from_bytes(whole[-8:-4], "little")
    refused = 0
    for at in range(len(whole) - 8 - size, len(whole) - 8):
        changed = bytes([whole[at] ^ 1 << at * 5 % 8])
        damaged.write_bytes(whole[:at] + changed + whole[at + 1 :])
        try:
            ParquetTables(folder).columns("CUPTI_ACTIVITY_KIND_KERNEL")
        except RawFormatError:
            refused += 1
    assert refused > 20


def test_missing_pyarrow_names_the_extra_and_the_sqlite_alternative(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "NVTX_EVENTS.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(RawFormatError, match="needs pyarrow") as caught:
        convert(tmp_path, tmp_path / "r.db")
    assert "unified-prof[parquet]" in str(caught.value.hint)
    assert "--type sqlite" in str(caught.value.hint)
