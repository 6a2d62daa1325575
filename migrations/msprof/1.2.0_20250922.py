"""Collectives know their device; ranks are mapped to devices.

Released in: 2025-09-22, CANN 8.3.RC1; SCHEMA_VERSION 1.2.0.
Old rows: a collective has the device on which its steps ran (COMMUNICATION_OP.opId to
COMMUNICATION_TASK_INFO to TASK), -1 and counted where that is not known. Every device gets
rank -1, as the exporter itself writes; a map that torch_npu made stays.
"""

import sqlalchemy as sa
from alembic import op

from unified_prof.migrate import steps

revision = "1.2.0_20250922"
down_revision = "1.1.1_20250820"

NOT_RECORDED = -1
INDEXES = (
    "SELECT count(*) FROM sqlite_master WHERE type = 'index'"
    " AND name IN ('TaskIndex', 'CommunicationTaskIndex')"
)
# A collective starts with one of its steps, and TaskIndex finds tasks by their start: this
# settles nearly all of them without reading TASK, which may have millions of rows.
BY_START = """
    UPDATE COMMUNICATION_OP SET deviceId = (
        SELECT t.deviceId FROM TASK t INDEXED BY TaskIndex
        WHERE t.startNs = COMMUNICATION_OP.startNs AND EXISTS (
            SELECT 1 FROM COMMUNICATION_TASK_INFO c
            WHERE c.globalTaskId = t.globalTaskId AND c.opId = COMMUNICATION_OP.opId
        )
        LIMIT 1
    )
"""
STEPS_OF_OTHERS = """
    CREATE TEMP TABLE open_step AS
        SELECT globalTaskId, opId FROM COMMUNICATION_TASK_INFO
        WHERE opId IN (SELECT opId FROM COMMUNICATION_OP WHERE deviceId IS NULL)
"""
BY_SCAN = (
    "CREATE INDEX temp.open_step_index ON open_step (globalTaskId)",
    """
    CREATE TEMP TABLE found AS
        SELECT s.opId, min(t.deviceId) AS lowest, max(t.deviceId) AS highest
        FROM TASK t CROSS JOIN open_step s ON s.globalTaskId = t.globalTaskId
        GROUP BY s.opId
    """,
    "CREATE INDEX temp.found_index ON found (opId)",
    """
    UPDATE COMMUNICATION_OP SET deviceId = (
        SELECT lowest FROM found WHERE found.opId = COMMUNICATION_OP.opId AND lowest = highest
    )
    WHERE deviceId IS NULL
    """,
    "DROP TABLE temp.found",
)


def upgrade() -> None:
    known = steps.has("COMMUNICATION_OP", "deviceId")
    steps.add_column("COMMUNICATION_OP", sa.Column("deviceId", sa.INTEGER()))
    if steps.has("COMMUNICATION_OP") and not known:
        _derive_devices()
    mapped = steps.has("RANK_DEVICE_MAP")
    steps.create_table(
        "RANK_DEVICE_MAP",
        sa.Column("rankId", sa.INTEGER()),
        sa.Column("deviceId", sa.INTEGER()),
        always=True,
    )
    if not mapped and steps.has("NPU_INFO", "id"):
        op.execute("INSERT INTO RANK_DEVICE_MAP SELECT -1, id FROM NPU_INFO ORDER BY rowid")


def _derive_devices() -> None:
    unknown = "COMMUNICATION_OP WHERE deviceId IS NULL"
    if steps.has("COMMUNICATION_TASK_INFO", "opId", "globalTaskId") and steps.has(
        "TASK", "startNs", "globalTaskId", "deviceId"
    ):
        if op.get_bind().execute(sa.text(INDEXES)).scalar_one() == 2:
            op.execute(BY_START)
        if steps.count(unknown):
            op.execute(STEPS_OF_OTHERS)
            if steps.count("temp.open_step"):
                for statement in BY_SCAN:
                    op.execute(statement)
            op.execute("DROP TABLE temp.open_step")
    steps.anomaly(
        "communication_op_device_unknown",
        steps.count(unknown),
        "COMMUNICATION_OP.deviceId is -1: no step of the collective is in TASK, or they differ",
    )
    op.execute(f"UPDATE COMMUNICATION_OP SET deviceId = {NOT_RECORDED} WHERE deviceId IS NULL")
