"""Outputs of commands equal their stored text."""

from pathlib import Path

import pytest

from tests import goldens

# Rows or bytes that are processed at a time, small enough for several blocks in each recording.
BLOCKS = {
    "decoders.ascend_pt.queue._ROWS": 3,
    "decoders.ascend_text.recording._ROWS": 2,
    "decoders.compression._PLAIN_PIECE_BYTES": 700,
    "decoders.gpu.joins.WINDOW_ROWS": 3,
    "decoders.gpu.joins._TASK_WINDOW_ROWS": 3,
    "decoders.gpu.rows.RUN_BYTES": 200,
    "decoders.gpu.rows._BATCH_ROWS": 3,
    "decoders.memory_snapshot.snapshot._BATCH_ROWS": 2,
    "decoders.nsys.columns._ROWS": 2,
    "decoders.prof.pmu_records._PIECE_BYTES": 256,
    "decoders.rocm.json_tables._ROWS": 2,
    "decoders.spool.RUN_ROWS": 3,
    "decoders.spool._MIN_BLOCK_ROWS": 1,
    "export.files._ROWS_AT_ONCE": 2,
    "export.tables._ASKED_AT_ONCE": 2,
    "recording.breakdowns._SPARSE": 0,
    "recording.python_frames.SPARSE": -1024,
    "sqlite.column_reader._CHUNK_ROWS": 3,
    "sqlite.column_reader._ROWS_AT_A_TIME": 2,
    "sqlite.external_tables._ROWS": 3,
    "sqlite.external_tables._ROWS_WITH_TEXTS": 2,
    "sqlite.integer_columns._BLOCK_ROWS": 3,
    "sqlite.integer_columns._SMALL_BYTES": -1,
    "sqlite.inserts.TEXT_AT_ONCE": 100,
    "sqlite.writer.ROWS_WORTH_PAGES": 1,
    "sqlite.writer.TEXT_AT_ONCE": 100,
    "sqlite.writer._ROWS_AT_ONCE": 5,
    "sqlite.writer._STRINGS_PER_BATCH": 3,
}


@pytest.mark.parametrize("name", goldens.RECORDINGS)
def test_outputs_of_commands_equal_the_golden(name: str, tmp_path: Path) -> None:
    found = goldens.transcript(name, tmp_path)
    assert found == goldens.golden(name), "python -m tests.goldens rewrites the stored texts"


@pytest.mark.parametrize(
    "name",
    ["ascend_pt", "ascend_text", "kineto_events", "memory_snapshot", "mindstudio", "nsys", "rocm"],
)
def test_outputs_do_not_depend_on_sizes_of_blocks(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place, size in BLOCKS.items():
        monkeypatch.setattr(f"unified_prof.{place}", size)
    assert goldens.transcript(name, tmp_path) == goldens.golden(name)
