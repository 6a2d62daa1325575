"""UPROF_ANOMALIES is a ledger: counts are summed, and the first detail is kept."""

import sqlite3
from contextlib import closing

from unified_prof.base.columns import Ledger
from unified_prof.sqlite.skyline_writer import add_anomaly, recorded_anomalies

CASES = [("b", 2, ""), ("a", 1, "first"), ("b", 3, "case"), ("a", 4, "second"), ("c", 0, "none")]


def test_anomalies_in_a_file_are_summed_as_in_memory() -> None:
    ledger = Ledger()
    with closing(sqlite3.connect(":memory:")) as db:
        assert recorded_anomalies(db) == {}
        for name, count, detail in CASES:
            add_anomaly(db, name, count, detail)
            ledger.add(name, detail, count)
        assert recorded_anomalies(db) == dict(ledger) == {"b": (5, "case"), "a": (5, "first")}
        add_anomaly(db, "none", 0, "x")
        assert "none" not in recorded_anomalies(db)


def test_zero_anomalies_create_no_table() -> None:
    with closing(sqlite3.connect(":memory:")) as db:
        add_anomaly(db, "a", 0, "x")
        assert db.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)
