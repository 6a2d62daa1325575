"""An old file and its upgraded copy read the same."""

from pathlib import Path

import numpy as np
import pytest

from unified_prof import open_report
from unified_prof.migrate.upgrade import upgrade
from unified_prof.schema import catalogue
from unified_prof.schema.catalogue import MSPROF, REVISIONS
from unified_prof.sqlite import reader
from unified_prof.sqlite.reader import HCCL_TYPES
from unified_prof.sqlite.writer import ReportWriter

# Not recorded data: enums stay as collected, devices are inferred.
NOT_COMPARED = {"META_DATA", "RANK_DEVICE_MAP", "STRING_IDS"}


@pytest.mark.slow
@pytest.mark.parametrize("revision", REVISIONS[MSPROF][:-1])
def test_views_show_what_an_upgrade_stores(tmp_path: Path, revision: str) -> None:
    old, new = tmp_path / "old.db", tmp_path / "new.db"
    tables = {
        name: spec.column_names
        for name, spec in catalogue.load(MSPROF, "latest").tables.items()
        if name not in NOT_COMPARED and not name.startswith("ENUM_")
    }
    with ReportWriter(old, revision=revision) as writer:
        for table, columns in tables.items():
            batch = {column: np.arange(2, 5) + i for i, column in enumerate(columns)}
            # Types that the first enums contain.
            batch |= {column: np.arange(3) for name, column in HCCL_TYPES if name == table}
            writer.write(table, batch)
        writer.strings.intern("N/A")
    upgrade(old, output=new)
    with open_report(old) as before, open_report(new) as after:
        (not_known,) = after.rows("SELECT id FROM STRING_IDS WHERE value = 'N/A'")
        for table, columns in tables.items():
            layout = reader.layout(revision, table)
            # A column that the old file lacks is NULL there and unknown in the upgraded file.
            lacking = layout.dropped if layout else ()
            shown = [column for column in columns if column not in lacking]
            query = f"SELECT {', '.join(shown)} FROM {table} ORDER BY 1, 2"
            assert before.rows(query) == after.rows(query), table
            for column in lacking:
                query = f"SELECT DISTINCT {column} FROM {table}"
                assert before.rows(query) == [(None,)]
                assert after.rows(query) in ([(None,)], [(-1,)], [not_known]), (table, column)
