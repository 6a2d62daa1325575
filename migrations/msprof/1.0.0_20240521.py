"""Enums for collectives, core frequencies, mstx marks; three columns renamed.

Released in: 2024-05-21, CANN 8.0.RC2. The types of collectives (data, link, transport, RDMA)
turn from ids of STRING_IDS into ids of ENUM_HCCL_ tables.
Old rows: these ids are looked up by their texts. A text that is no name of the enum becomes its
number if it is one, else 65535 (INVALID_TYPE) and is counted, as the exporter itself does;
N/A becomes 65534, the id it has from the next revision on.
"""

import sqlalchemy as sa
from alembic import op

from unified_prof.migrate import steps

revision = "1.0.0_20240521"
down_revision = "1.0.0_20240516"

TEXT = "SELECT value FROM STRING_IDS WHERE id = :id LIMIT 1"
LOOK_UP = """(SELECT number FROM temp.numbers WHERE name = '{column}' AND id = "{column}")"""
NOT_APPLICABLE = 65534
INVALID = 65535
LONGEST_NUMBER = 18  # digits that SQLite stores as an integer for certain
ENUMS = {
    "ENUM_HCCL_DATA_TYPE": {
        0: "INT8",
        1: "INT16",
        2: "INT32",
        3: "FP16",
        4: "FP32",
        5: "INT64",
        6: "UINT64",
        INVALID: "INVALID_TYPE",
    },
    "ENUM_HCCL_LINK_TYPE": {
        0: "ON_CHIP",
        1: "HCCS",
        2: "PCIE",
        3: "ROCE",
        4: "SIO",
        5: "HCCS_SW",
        6: "STANDARD_ROCE",
        7: "RESERVED",
        INVALID: "INVALID_TYPE",
    },
    "ENUM_HCCL_TRANSPORT_TYPE": {0: "SDMA", 1: "RDMA", 2: "LOCAL", INVALID: "INVALID_TYPE"},
    "ENUM_HCCL_RDMA_TYPE": {
        0: "RDMA_SEND_NOTIFY",
        1: "RDMA_SEND_PAYLOAD",
        2: "RDMA_PAYLOAD_PREPARE",
        3: "RDMA_PAYLOAD_CHECK",
        4: "RDMA_PAYLOAD_ACK",
        5: "RDMA_SEND_OP",
        INVALID: "INVALID_TYPE",
    },
    "ENUM_MSTX_EVENT_TYPE": {0: "marker", 1: "push/pop", 2: "start/end", 3: "marker_ex"},
}
REFERENCES = {
    "COMMUNICATION_TASK_INFO": {
        "rdmaType": "ENUM_HCCL_RDMA_TYPE",
        "transportType": "ENUM_HCCL_TRANSPORT_TYPE",
        "dataType": "ENUM_HCCL_DATA_TYPE",
        "linkType": "ENUM_HCCL_LINK_TYPE",
    },
    "COMMUNICATION_OP": {"dataType": "ENUM_HCCL_DATA_TYPE"},
}


def upgrade() -> None:
    steps.rename_column("COMPUTE_TASK_INFO", "block_dim", "blockDim")
    steps.rename_column("NPU_MEM", "ddrUsage", "ddr")
    steps.rename_column("NPU_MEM", "hbmUsage", "hbm")
    steps.create_table(
        "AICORE_FREQ",
        sa.Column("deviceId", sa.INTEGER()),
        sa.Column("timestampNs", sa.NUMERIC()),
        sa.Column("freq", sa.INTEGER()),
    )
    steps.create_table(
        "MSTX_EVENTS",
        sa.Column("startNs", sa.INTEGER()),
        sa.Column("endNs", sa.INTEGER()),
        sa.Column("eventType", sa.INTEGER()),
        sa.Column("rangeId", sa.INTEGER()),
        sa.Column("category", sa.INTEGER()),
        sa.Column("message", sa.INTEGER()),
        sa.Column("globalTid", sa.INTEGER()),
        sa.Column("endGlobalTid", sa.INTEGER()),
        sa.Column("domainId", sa.INTEGER()),
        sa.Column("connectionId", sa.INTEGER()),
    )
    for enum, rows in ENUMS.items():
        steps.create_enum(enum, rows)
    for table, columns in REFERENCES.items():
        present = {c: enum for c, enum in columns.items() if steps.has(table, c)}
        _texts_to_enums(table, present)


def _texts_to_enums(table: str, columns: dict[str, str]) -> None:
    """Convert all columns of a table in one pass, for it may have millions of rows."""
    bind = op.get_bind()
    bind.exec_driver_sql("CREATE TEMP TABLE numbers (name TEXT, id INTEGER, number INTEGER)")
    bind.exec_driver_sql("CREATE UNIQUE INDEX temp.numbers_index ON numbers (name, id)")
    converted = [column for column, enum in columns.items() if _look_up(table, column, enum)]
    if converted:
        changes = (f'"{c}" = coalesce({LOOK_UP.format(column=c)}, "{c}")' for c in converted)
        op.execute(f'UPDATE "{table}" SET {", ".join(changes)}')
    bind.exec_driver_sql("DROP TABLE temp.numbers")


def _look_up(table: str, column: str, enum: str) -> bool:
    """Note the number of every text in a column; say whether there is anything to convert."""
    bind = op.get_bind()
    query = f'SELECT DISTINCT "{column}" FROM "{table}" WHERE "{column}" IS NOT NULL'
    ids = bind.exec_driver_sql(query).scalars().all()
    if not ids:
        return False
    if not steps.has("STRING_IDS", "id", "value"):
        words = f"{table}.{column} still holds ids of the STRING_IDS that the file does not have"
        steps.anomaly("hccl_type_unresolved", len(ids), words)
        return False
    texts = {i: bind.execute(sa.text(TEXT), {"id": i}).scalar() for i in ids}
    numbers = {i: _number(text, ENUMS[enum]) for i, text in texts.items()}
    if NOT_APPLICABLE in numbers.values():
        steps.change_enum(enum, add={NOT_APPLICABLE: "N/A"})
    for i, number in numbers.items():
        if number is None:
            query = f'SELECT count(*) FROM "{table}" WHERE "{column}" = :id'
            rows = bind.execute(sa.text(query), {"id": i}).scalar_one()
            words = f"{table}.{column}: {texts[i]!r} is not in {enum}, stored as {INVALID}"
            steps.anomaly("hccl_type_unknown", rows, words)
    bind.execute(
        sa.text("INSERT INTO numbers VALUES (:name, :id, :number)"),
        [
            {"name": column, "id": i, "number": INVALID if n is None else n}
            for i, n in numbers.items()
        ],
    )
    return True


def _number(text: str | None, rows: dict[int, str]) -> int | None:
    if text == "N/A":
        return NOT_APPLICABLE
    for number, name in rows.items():
        if name == text:
            return number
    return int(text) if text and text.isdecimal() and len(text) <= LONGEST_NUMBER else None
