"""Constants renamed and dropped; no connection is -1.

Released in: 2025-03-27. The API level hccl is called communication (2025-02-19), RESERVED is 255
in all enums of collectives, four RDMA types go. On 2025-02-18 the mark of a task without a
connection changed; for four days of that month domains of marks were not recorded.
Old rows: TASK.connectionId 4294967295 becomes -1 (COMMUNICATION_OP keeps it, newer files have it
too). Constants stay as collected. Marks without a domain are counted.
"""

from alembic import op

from unified_prof.migrate import steps

revision = "1.1.1_20250327"
down_revision = "1.1.1_20250123"


def upgrade() -> None:
    steps.change_enum("ENUM_API_TYPE", remove=(5500,), add={5500: "communication"})
    steps.change_enum("ENUM_HCCL_DATA_TYPE", add={255: "RESERVED"})
    steps.change_enum("ENUM_HCCL_LINK_TYPE", remove=(7,), add={255: "RESERVED"})
    steps.change_enum("ENUM_HCCL_TRANSPORT_TYPE", add={255: "RESERVED"})
    steps.change_enum("ENUM_HCCL_RDMA_TYPE", remove=(2, 3, 4, 5), add={255: "RESERVED"})
    if steps.has("TASK", "connectionId"):
        op.execute("UPDATE TASK SET connectionId = -1 WHERE connectionId = 4294967295")
    if steps.has("MSTX_EVENTS", "domainId") and steps.has("STRING_IDS", "id"):
        steps.anomaly(
            "mstx_domain_unknown",
            steps.count(
                "MSTX_EVENTS WHERE domainId = 65535"
                " AND NOT EXISTS (SELECT 1 FROM STRING_IDS WHERE id = 65535)"
            ),
            "MSTX_EVENTS.domainId is the constant 65535, the domain was not recorded",
        )
