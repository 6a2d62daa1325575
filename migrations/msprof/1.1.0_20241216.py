"""The scheduling of collectives by AI CPUs; groups are named otherwise.

Released in: 2024-12-16, CANN 8.0.0; SCHEMA_VERSION 1.1.0.
Old rows: unchanged; collectives whose group has an old name are counted.
"""

import sqlalchemy as sa

from unified_prof.migrate import steps

revision = "1.1.0_20241216"
down_revision = "1.0.0_20241112"


def upgrade() -> None:
    steps.create_table(
        "COMMUNICATION_SCHEDULE_TASK_INFO",
        sa.Column("name", sa.INTEGER()),
        steps.key("globalTaskId"),
        sa.Column("taskType", sa.INTEGER()),
        sa.Column("opType", sa.INTEGER()),
    )
    if steps.has("COMMUNICATION_OP"):
        steps.anomaly(
            "group_name_meaning",
            steps.count("COMMUNICATION_OP"),
            "groupName is as exporters before 1.1.0 named groups",
        )
