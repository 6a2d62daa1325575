"""The first summary of a cluster, marked by user_version 1.

Released in: uprof's first release with `uprof cluster`.
Old rows: there are none, this is the first revision.
"""

import sqlalchemy as sa
from alembic import op

from unified_prof.migrate.steps import key

revision = "1"
down_revision = None


def _int(name, required=False):
    return sa.Column(name, sa.INTEGER(), nullable=not required)


def _text(name, required=False):
    return sa.Column(name, sa.TEXT(), nullable=not required)


def _real(name, required=False):
    return sa.Column(name, sa.REAL(), nullable=not required)


def upgrade() -> None:
    op.create_table(
        "META_DATA",
        sa.Column("name", sa.TEXT(), primary_key=True, nullable=False),
        _text("value", True),
    )
    op.create_table(
        "RANK",
        key("rank"),
        _text("host"),
        _int("device_id"),
        _text("device_name"),
        _text("vendor"),
        _text("file"),
        _text("partial"),
        _text("status", True),
        _text("why"),
        *(_int(name) for name in ("tp", "dp", "pp", "ep", "cp")),
        *(_int(name) for name in ("clock_offset_ns", "clock_error_ns", "clock_island")),
    )
    op.create_table(
        "GROUP",
        key("id"),
        _text("kind", True),
        _text("names", True),
        _text("ranks", True),
        _int("size", True),
        _int("hosts"),
    )
    op.create_table(
        "STEP_RANK",
        *(_int(name, True) for name in ("step", "rank", "start_ns", "end_ns")),
        *(_int(f"{name}_ns", True) for name in ("compute", "communication")),
        _int("exposed_communication_ns", True),
        *(_int(f"{name}_ns") for name in ("wait", "exposed_wait", "setup", "bubble", "input_late")),
        _int("idle_ns", True),
        sa.PrimaryKeyConstraint("step", "rank"),
    )
    op.create_table(
        "COLLECTIVE",
        key("id"),
        _int("group_id", True),
        _text("kind", True),
        _int("step"),
        _int("bytes"),
        *(_int(name, True) for name in ("n", "complete_n")),
        *(_int(f"{name}_ns", True) for name in ("transfer", "wait", "setup")),
        _int("transfer_p50_ns"),
        _int("transfer_p99_ns"),
        _real("bus_gb_per_s"),
    )
    op.create_table(
        "BLAME",
        key("rank"),
        *(_int(name, True) for name in ("caused_wait_ns", "times", "work_ns")),
        _int("stage_work_ns"),
        _real("work_ratio"),
        *(_int(f"{name}_ns") for name in ("host_gap", "stage_host_gap", "input_late")),
        _real("saved_ns_per_step"),
        _text("cause"),
    )
    op.create_table(
        "LINK",
        _int("src_rank", True),
        _int("dst_rank", True),
        _text("kind", True),
        _int("across_hosts"),
        *(_int(name, True) for name in ("n", "bytes", "transfer_ns")),
        _int("wait_ns"),
        *(_real(name) for name in ("gb_per_s_p50", "gb_per_s_p99", "like_gb_per_s")),
        sa.PrimaryKeyConstraint("src_rank", "dst_rank", "kind"),
    )
    op.create_table(
        "OPERATION_RANK",
        _int("rank", True),
        _text("name", True),
        _text("module", True),
        *(_int(name, True) for name in ("n", "total_ns", "min_ns", "max_ns")),
        sa.PrimaryKeyConstraint("rank", "name", "module"),
    )
    op.create_table(
        "FINDING",
        key("place"),
        *(_text(name, True) for name in ("kind", "ranks", "hosts", "links", "steps")),
        _real("cost_ms_per_step", True),
        *(_text(name, True) for name in ("figures", "text")),
    )
    op.execute("PRAGMA user_version = 1")
