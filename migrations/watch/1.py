"""The first watch file, marked by user_version 1.

Released in: uprof's first release with `uprof watch`.
Old rows: there are none, this is the first revision.
"""

import sqlalchemy as sa
from alembic import op

from unified_prof.migrate.steps import key

revision = "1"
down_revision = None


def _int(name, required=False):
    return sa.Column(name, sa.INTEGER(), nullable=not required)


def _text(name, required=False):
    return sa.Column(name, sa.TEXT(), nullable=not required)


def upgrade() -> None:
    op.create_table(
        "STEP",
        key("step"),
        *(_int(name, True) for name in ("start_ns", "length_ns", "data_ns")),
        *(_int(f"{name}_ns") for name in ("forward", "backward", "optimizer")),
        *(_int(f"{name}_ns", True) for name in ("wait", "gc")),
        *(_int(name) for name in ("device_ns", "allocated_bytes", "reserved_bytes")),
        *(_int(name) for name in ("samples", "event")),
    )
    op.create_table(
        "EVENT",
        key("id"),
        *(_int(name, True) for name in ("time_ns", "step")),
        *(_text(name, True) for name in ("kind", "text")),
        *(_text(name) for name in ("capture", "status", "finding")),
    )
    op.execute("PRAGMA user_version = 1")
