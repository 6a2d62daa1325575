"""The run time report as Skyline writes it, marked by user_version 1.

Released in: Skyline's first release with SQLite reports.
Old rows: there are none, this is the first revision.
"""

import sqlalchemy as sa
from alembic import op

from unified_prof.migrate.steps import key

revision = "1"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "run_time_entries",
        key("id"),
        sa.Column("operation_name", sa.TEXT(), nullable=False),
        sa.Column("forward_ms", sa.REAL(), nullable=False),
        sa.Column("backward_ms", sa.REAL()),
    )
    op.create_table(
        "stack_frames",
        sa.Column("ordering", sa.INTEGER(), nullable=False),
        sa.Column("file_path", sa.TEXT(), nullable=False),
        sa.Column("line_number", sa.INTEGER(), nullable=False),
        sa.Column("entry_id", sa.INTEGER(), nullable=False),
        sa.PrimaryKeyConstraint("entry_id", "ordering"),
    )
    op.execute("PRAGMA user_version = 1")
