"""Create the baseline store.

Since 0.1.0. One table; nothing to convert.
"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table of baselines and its index."""
    op.create_table(
        "uprof_baselines",
        sa.Column("id", sa.Integer(), primary_key=True, autoincrement=True),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("saved_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("label", sa.Text(), nullable=False),
        sa.Column("uprof_version", sa.String(50), nullable=False),
        sa.Column("device", sa.Text(), nullable=True),
        sa.Column("git_commit", sa.String(64), nullable=True),
        sa.Column("samples", sa.Integer(), nullable=False),
        sa.Column("document", sa.LargeBinary(), nullable=False),
    )
    op.create_index("uprof_baselines_name", "uprof_baselines", ["name", "id"])
