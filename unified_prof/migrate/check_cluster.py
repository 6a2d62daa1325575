"""What can be wrong in the rows of a cluster's summary."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from unified_prof.migrate.findings import Finding, problem
from unified_prof.models import catalogue
from unified_prof.store.fingerprint import Facts

_STATUSES = "('read', 'partly', 'failed', 'absent')"
_RANKS = "(SELECT rank FROM RANK)"
_WRONG = (
    ("enum", f"RANK WHERE status NOT IN {_STATUSES}", "RANK.status is not one of its four values"),
    ("interval", "STEP_RANK WHERE end_ns < start_ns", "steps end before they start"),
    ("dangling", f"STEP_RANK WHERE rank NOT IN {_RANKS}", "STEP_RANK.rank is not in RANK"),
    ("dangling", f"BLAME WHERE rank NOT IN {_RANKS}", "BLAME.rank is not in RANK"),
    ("dangling", f"OPERATION_RANK WHERE rank NOT IN {_RANKS}", "OPERATION_RANK.rank not in RANK"),
    (
        "dangling",
        f"LINK WHERE src_rank NOT IN {_RANKS} OR dst_rank NOT IN {_RANKS}",
        "LINK.src_rank or dst_rank is not in RANK",
    ),
    (
        "dangling",
        'COLLECTIVE WHERE group_id NOT IN (SELECT id FROM "GROUP")',
        "COLLECTIVE.group_id is not in GROUP",
    ),
    ("figure", "COLLECTIVE WHERE complete_n > n", "more collectives are complete than there are"),
)


def contents(db: sqlite3.Connection, facts: Facts) -> Iterator[Finding]:
    """Look for tables that are missing and rows that contradict others."""
    schema = catalogue.load(catalogue.CLUSTER, "latest")
    if missing := [name for name in schema.tables if name not in facts.tables]:
        for name in missing:
            yield problem("schema", f"table {name} is missing")
        return
    for kind, rows, words in _WRONG:
        if count := int(db.execute(f"SELECT count(*) FROM {rows}").fetchone()[0]):
            yield problem(kind, words, count)
