"""Memory copies: their size and direction.

Released in: 2024-12-18. A table of the same name with other columns existed for one day.
Old rows: unchanged; a table of that day is set aside.
"""

import sqlalchemy as sa

from unified_prof.migrate import steps

revision = "1.1.0_20241218"
down_revision = "1.1.0_20241216"


def upgrade() -> None:
    steps.create_table(
        "MEMCPY_INFO",
        sa.Column("globalTaskId", sa.NUMERIC()),
        sa.Column("size", sa.NUMERIC()),
        sa.Column("memcpyOperation", sa.NUMERIC()),
    )
    steps.create_enum(
        "ENUM_MEMCPY_OPERATION",
        {
            0: "host to host",
            1: "host to device",
            2: "device to host",
            3: "device to device",
            4: "managed memory",
            5: "addr device to device",
            6: "host to device ex",
            7: "device to host ex",
            65535: "other",
        },
    )
