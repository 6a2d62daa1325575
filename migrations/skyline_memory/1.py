"""The memory report as Skyline writes it, marked by user_version 1.

Released in: Skyline's first release with SQLite reports.
Old rows: there are none, this is the first revision.
"""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.types import UserDefinedType

from unified_prof.migrate.steps import key

revision = "1"
down_revision = None


class Int(UserDefinedType[int]):
    """`INT`, as the format spells one column."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        """Return the type's name in DDL."""
        return "INT"


def upgrade() -> None:
    op.create_table(
        "weight_entries",
        key("id"),
        sa.Column("name", sa.TEXT(), nullable=False),
        sa.Column("size_bytes", sa.INTEGER(), nullable=False),
        sa.Column("grad_size_bytes", sa.INTEGER(), nullable=False),
    )
    op.create_table(
        "activation_entries",
        key("id"),
        sa.Column("operation_name", sa.TEXT(), nullable=False),
        sa.Column("size_bytes", sa.INTEGER(), nullable=False),
    )
    types = op.create_table(
        "entry_types", key("entry_type"), sa.Column("name", sa.TEXT(), nullable=False)
    )
    op.create_table(
        "stack_correlation",
        key("correlation_id"),
        sa.Column("entry_id", sa.INTEGER(), nullable=False),
        sa.Column("entry_type", sa.INTEGER(), nullable=False),
        sa.UniqueConstraint("correlation_id", "entry_id"),
    )
    op.create_table(
        "stack_frames",
        sa.Column("correlation_id", sa.INTEGER(), nullable=False),
        sa.Column("ordering", sa.INTEGER(), nullable=False),
        sa.Column("file_path", sa.TEXT(), nullable=False),
        sa.Column("line_number", sa.INTEGER(), nullable=False),
        sa.PrimaryKeyConstraint("correlation_id", "ordering"),
    )
    op.create_table(
        "misc_sizes",
        sa.Column("key", sa.TEXT(), primary_key=True, nullable=True),
        sa.Column("size_bytes", Int(), nullable=False),
    )
    op.create_index(
        "entry_type_and_id", "stack_correlation", ["entry_type", "entry_id"], unique=True
    )
    op.bulk_insert(
        types, [{"entry_type": 1, "name": "Weight"}, {"entry_type": 2, "name": "Activation"}]
    )
    op.execute("PRAGMA user_version = 1")
