"""Which steps of a collective are in its main stream; no notify is -1.

Released in: 2025-01-23, CANN 8.1.RC1; SCHEMA_VERSION 1.1.1.
Old rows: isMaster is NULL, exporters have no mark for not known. The old mark of no notify,
9223372036854775807, becomes -1.
"""

import sqlalchemy as sa
from alembic import op

from unified_prof.migrate import steps

revision = "1.1.1_20250123"
down_revision = "1.1.0_20241218"


def upgrade() -> None:
    steps.add_column("COMMUNICATION_TASK_INFO", sa.Column("isMaster", sa.INTEGER()))
    if steps.has("COMMUNICATION_TASK_INFO", "notifyId"):
        op.execute(
            "UPDATE COMMUNICATION_TASK_INFO SET notifyId = -1 WHERE notifyId = 9223372036854775807"
        )
