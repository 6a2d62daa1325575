"""Two more components that use memory; two get other numbers.

Released in: 2024-11-12. MBUFF and CUSTOM move from 74 and 75 to 76 and 77, AMP and ADETECT take
their numbers. On 2024-10-31 the connectionId of marks without a device part changed from
4294967295 to 4000000000.
Old rows: unchanged, 74 and 75 keep their names. Marks with the old connectionId are counted.
"""

from unified_prof.migrate import steps

revision = "1.0.0_20241112"
down_revision = "1.0.0_20241008"


def upgrade() -> None:
    steps.change_enum(
        "ENUM_MODULE", remove=(74, 75), add={74: "AMP", 75: "ADETECT", 76: "MBUFF", 77: "CUSTOM"}
    )
    if steps.has("MSTX_EVENTS", "connectionId"):
        steps.anomaly(
            "mstx_connection_default",
            steps.count("MSTX_EVENTS WHERE connectionId = 4294967295"),
            "MSTX_EVENTS.connectionId 4294967295: newer exporters say 4000000000 for host only",
        )
