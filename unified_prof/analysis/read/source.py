"""What an analysis needs of an open report, and the facts that both families record alike."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from unified_prof.analysis.model import Anomaly
from unified_prof.ledger import Ledger
from unified_prof.redaction import MASK, is_secret_name, redact, redact_arguments
from unified_prof.store.detect import Detection
from unified_prof.store.integers import Window


class Source(Protocol):
    """An open report, as `unified_prof.open_report` gives it.

    Tables that the file lacks read as empty, old shapes appear in the newest one.
    """

    @property
    def path(self) -> Path:
        """The file."""

    @property
    def family(self) -> str:
        """Family of its schema."""

    @property
    def revision(self) -> str | None:
        """Revision of its schema, None where it cannot be told."""

    @property
    def detection(self) -> Detection:
        """How the file was recognised."""

    @property
    def tables(self) -> Collection[str]:
        """Names of the tables that the file has."""

    def rows(self, sql: str, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""

    def columns(self, sql: str, params: Sequence[Any] = ()) -> dict[str, NDArray[Any]]:
        """Return the result of a query as one array a column; NULL is masked or NaN."""

    def integers(
        self, table: str, columns: Mapping[str, str], *, narrow: Collection[str] = ()
    ) -> dict[str, NDArray[np.int64]]:
        """Return expressions over all rows of a table; what is no integer is MISSING."""

    def pieces(
        self, table: str, columns: Mapping[str, str]
    ) -> Iterator[dict[str, NDArray[np.int64]]]:
        """Yield what `integers` returns some thousand rows at a time."""

    def windows(
        self, table: str, columns: Mapping[str, str]
    ) -> Iterator[tuple[dict[str, NDArray[np.int64]], Window]]:
        """Yield the same some thousand rows at a time, and where those rows stand."""


def oddities_of_file(source: Source) -> list[Anomaly]:
    """Return what is odd about the file as such."""
    found = []
    detection = source.detection
    if source.revision is None:
        found.append(Anomaly("unknown_schema_revision", 1, detection.description, "found"))
    if not detection.complete:
        why = "its maker was stopped before the end"
        found.append(Anomaly("incomplete_file", 1, why, "found"))
    found += [Anomaly("odd_schema", 1, note, "found") for note in detection.notes]
    return found


class Findings(Ledger):
    """Oddities found while reading."""

    def anomalies(self) -> list[Anomaly]:
        """Return what was found, in order of first occurrence."""
        return [Anomaly(name, *found, "found") for name, found in self.items()]


def recorded_anomalies(source: Source) -> list[Anomaly]:
    """Return what the report's maker wrote down as skipped, unmatched or not measurable."""
    if "UPROF_ANOMALIES" not in source.tables:
        return []
    rows = source.rows("SELECT name, count, detail FROM UPROF_ANOMALIES ORDER BY name")
    return [
        Anomaly(
            str(name),
            count if isinstance(count, int) else 1,
            None if detail is None else str(detail),
            "recorded",
        )
        for name, count, detail in rows
    ]


def recorded_facts(source: Source) -> list[tuple[str, str]]:
    """Return how the report came to be, as (name, value), what looks like a secret masked."""
    if "UPROF_RUN" not in source.tables:
        return []
    rows = source.rows("SELECT name, value FROM UPROF_RUN WHERE value IS NOT NULL ORDER BY rowid")
    return [(str(name), without_secrets(str(name), str(value))) for name, value in rows]


def without_secrets(name: str, value: str) -> str:
    """Return the value of a fact without secrets: of today's reports none has any, of older some.

    A command stands there as a JSON list of its arguments.
    """
    if is_secret_name(name):
        return MASK
    if value.startswith("["):
        with suppress(ValueError, RecursionError):
            arguments = json.loads(value)
            if all(isinstance(one, str) for one in arguments):
                return json.dumps(redact_arguments(arguments))
    return redact(value)
