"""META_DATA, with the first SCHEMA_VERSION; the host; attributes and types of operators.

Released in: 2024-05-16, development. COMPUTE_TASK_INFO.attrInfo came on 2024-04-22 and
COMMUNICATION_OP.opType on 2024-05-11.
Old rows: N/A in both columns. HOST_INFO stays empty: the host was not recorded.
"""

import sqlalchemy as sa

from unified_prof.migrate import steps

revision = "1.0.0_20240516"
down_revision = "pre_20240328"


def upgrade() -> None:
    steps.create_table(
        "META_DATA", sa.Column("name", sa.TEXT()), sa.Column("value", sa.TEXT()), always=True
    )
    steps.create_table(
        "HOST_INFO",
        sa.Column("hostUid", sa.INTEGER()),
        sa.Column("hostName", sa.TEXT()),
        always=True,
    )
    steps.add_texts("COMPUTE_TASK_INFO", "attrInfo")
    steps.add_texts("COMMUNICATION_OP", "opType")
