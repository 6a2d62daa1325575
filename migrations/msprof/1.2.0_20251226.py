"""Components renamed and dropped. This is the revision that the published document describes.

Released in: 2025-12-26, CANN 8.5.0.
Old rows: unchanged; components keep the names they were collected with.
"""

from unified_prof.migrate import steps

revision = "1.2.0_20251226"
down_revision = "1.2.0_20250922"


def upgrade() -> None:
    steps.change_enum(
        "ENUM_MODULE",
        remove=(2, 5, 11, *range(12, 22), 26, 46, 59),
        add={2: "SCC", 5: "CCU", 11: "NET"},
    )
