"""Number the versions of a baseline in the table, and let no two have the same number.

Versions were counted while reading, in the order of ids: concurrent writers could get the same
number, and a number could later mean another run. Rows keep their last number.
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column `version`, fill it, and make (name, version) unique."""
    with op.batch_alter_table("uprof_baselines") as table:
        table.add_column(sa.Column("version", sa.Integer(), nullable=True))
    op.execute(
        "UPDATE uprof_baselines SET version = (SELECT count(*) FROM uprof_baselines AS earlier"
        " WHERE earlier.name = uprof_baselines.name AND earlier.id <= uprof_baselines.id)"
    )
    with op.batch_alter_table("uprof_baselines") as table:
        table.alter_column("version", existing_type=sa.Integer(), nullable=False)
        table.create_unique_constraint("uprof_baselines_name_version", ["name", "version"])
        table.drop_index("uprof_baselines_name")
