"""Bandwidths: of the steps of collectives, and of memory by quality of service.

Released in: 2025-08-20.
Old rows: bandwidth is NULL, exporters have no mark for not known.
"""

import sqlalchemy as sa

from unified_prof.migrate import steps

revision = "1.1.1_20250820"
down_revision = "1.1.1_20250620"


def upgrade() -> None:
    steps.add_column("COMMUNICATION_TASK_INFO", sa.Column("bandwidth", sa.NUMERIC()))
    steps.create_table(
        "QOS",
        sa.Column("deviceId", sa.INTEGER()),
        sa.Column("eventName", sa.NUMERIC()),
        sa.Column("bandwidth", sa.NUMERIC()),
        sa.Column("timestampNs", sa.NUMERIC()),
    )
