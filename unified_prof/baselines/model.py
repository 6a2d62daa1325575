"""The baseline store: what gates compare with, in SQLite or PostgreSQL.

Unlike reports this is uprof's own format. A baseline is never overwritten: saving one under a name
that exists adds the next version of it, and the newest is what `gate` takes.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import DateTime, LargeBinary, String, Text, UniqueConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class BaselineBase(DeclarativeBase):
    """Registry of the baseline store's tables."""


class Baseline(BaselineBase):
    """One version of one baseline."""

    __tablename__ = "uprof_baselines"
    id: Mapped[int] = mapped_column(
        primary_key=True,
        autoincrement=True,
        doc="rises with every save, in the order in which they began",
    )
    name: Mapped[str] = mapped_column(String(200), doc="what the user calls it")
    version: Mapped[int] = mapped_column(doc="from 1, counted per name; never given twice")
    saved_at: Mapped[datetime] = mapped_column(
        DateTime(timezone=True), doc="when it was saved, UTC"
    )
    label: Mapped[str] = mapped_column(Text, doc="the report files it was made from")
    uprof_version: Mapped[str] = mapped_column(String(50), doc="version that saved it")
    device: Mapped[str | None] = mapped_column(Text, doc="device of the run, where it is known")
    commit: Mapped[str | None] = mapped_column(
        "git_commit", String(64), doc="commit of the project that ran, where it is known"
    )
    samples: Mapped[int] = mapped_column(doc="iterations (or files) that were measured")
    document: Mapped[bytes] = mapped_column(
        LargeBinary, doc="the run, as unified_prof.baselines.document writes it"
    )

    __table_args__ = (UniqueConstraint("name", "version", name="uprof_baselines_name_version"),)
