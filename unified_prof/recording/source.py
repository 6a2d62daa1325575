"""Interface of an open report (`Source`), and readers shared by both report families.

The readers return provenance facts, anomalies, texts and missing reports of a run, and check times.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

from msgspec import Struct

from unified_prof.arrays.grouping import Bools, Ints
from unified_prof.base.columns import NOT_AVAILABLE, CoveredPart, Ledger
from unified_prof.base.redaction import MASK, is_secret_name, redact, redact_arguments
from unified_prof.recording.model import Anomaly

if TYPE_CHECKING:
    from unified_prof.sqlite.reader import Report

Source: TypeAlias = "Report"  # An open report, as `unified_prof.open_report` returns it.


def file_anomalies(source: Source) -> list[Anomaly]:
    """Return the anomalies of the file as a whole."""
    result = []
    detection = source.detection
    if source.revision is None:
        result.append(Anomaly("unknown_schema_revision", 1, detection.description, "found"))
    if not detection.complete:
        why = "its writer was stopped before it finished"
        result.append(Anomaly("incomplete_file", 1, why, "found"))
    result += [Anomaly("odd_schema", 1, note, "found") for note in detection.notes]
    return result


def task_counters(source: Source) -> str:
    """Return the table with counters of tasks: that of msprof, or ours on 910A and 310P."""
    ours = "UPROF_TASK_PMU_INFO"
    return ours if ours in source.tables else "TASK_PMU_INFO"


class Findings(Ledger):
    """Anomalies found while reading."""

    def anomalies(self) -> list[Anomaly]:
        """Return the anomalies in order of first occurrence."""
        return [Anomaly(name, *result, "found") for name, result in self.items()]


def recorded_anomalies(source: Source) -> list[Anomaly]:
    """Return the anomalies that the writer of the report recorded."""
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


def recorded_coverage(source: Source) -> tuple[CoveredPart, ...]:
    """Return how much of the recording was decoded; empty if the report was not converted."""
    if "UPROF_COVERAGE" not in source.tables:
        return ()
    columns = ", ".join(CoveredPart._fields)
    rows = source.rows(f"SELECT {columns} FROM UPROF_COVERAGE ORDER BY kind, unit")
    return tuple(
        CoveredPart(str(kind), str(unit), *(max(0, n) if type(n) is int else 0 for n in sizes))
        for kind, unit, *sizes in rows
    )


def recorded_facts(source: Source) -> list[tuple[str, str]]:
    """Return the provenance as (name, value), with secrets masked."""
    if "UPROF_RUN" not in source.tables:
        return []
    rows = source.rows("SELECT name, value FROM UPROF_RUN WHERE value IS NOT NULL ORDER BY rowid")
    return [(str(name), without_secrets(str(name), str(value))) for name, value in rows]


def without_secrets(name: str, value: str) -> str:
    """Return the value of a fact with secrets masked; only old reports contain secrets.

    A command is a JSON list of its arguments.
    """
    if is_secret_name(name):
        return MASK
    if value.startswith("["):
        with suppress(ValueError, RecursionError):
            arguments = json.loads(value)
            if all(isinstance(argument, str) for argument in arguments):
                return json.dumps(redact_arguments(arguments))
    return redact(value)


_RANK = re.compile(r"rank (\d+)")


class Missing(Struct, frozen=True):
    """A report that is missing or cannot be read completely."""

    what: str  # `rank 3`, or the file if no rank is known.
    why: str

    @property
    def rank(self) -> int | None:
        """The rank, if known."""
        match = _RANK.fullmatch(self.what)
        return int(match[1]) if match else None


class Coverage(Struct, frozen=True):
    """Number of expected reports, and how many of them were read completely."""

    unit: str  # `ranks`, or `reports` if ranks are unknown.
    expected: int
    whole: int
    missing: tuple[Missing, ...]

    @classmethod
    def from_reports(cls, read: Iterable[str], missing: Iterable[Missing]) -> Coverage:
        """Return the coverage from reports, each named `rank 3` or by its file."""
        missing = tuple(sorted(missing, key=lambda one: (one.rank is None, one.rank or 0)))
        incomplete = {one.what for one in missing}
        every = {*read} | incomplete
        unit = "ranks" if all(_RANK.fullmatch(one) for one in every) else "reports"
        return cls(unit, len(every), len(every - incomplete), missing)

    @property
    def headline(self) -> str:
        """Text such as `7 of 8 ranks`."""
        return f"{self.whole:,} of {self.expected:,} {self.unit}"

    @property
    def reasons(self) -> list[str]:
        """Reason for each missing report."""
        return [one.why if one.rank is None else f"{one.what}: {one.why}" for one in self.missing]

    @property
    def sentence(self) -> str:
        """Headline and reasons in one line; empty if no report is missing."""
        return "; ".join([self.headline, *self.reasons]) if self.missing else ""


# Texts that mean "unknown" in msprof.
NOTHING_KNOWN = frozenset({"", NOT_AVAILABLE, "NULL", "UNKNOWN", None})


class Strings:
    """The texts of STRING_IDS."""

    def __init__(self, source: Source) -> None:
        self._source = source

    @cached_property
    def _texts(self) -> dict[int, str]:
        return dict(self._source.rows("SELECT id, value FROM STRING_IDS"))

    def all(self) -> Iterable[str]:
        """Return all texts."""
        return (text for text in self._texts.values() if isinstance(text, str))

    def get(self, number: int) -> str | None:
        """Return the text of an id, None if it has no text or the text means unknown."""
        text = self._texts.get(number)
        return None if text in NOTHING_KNOWN else str(text)

    def texts(self, numbers: Iterable[int]) -> list[str | None]:
        """Return the texts of many ids."""
        return [self.get(number) for number in numbers]


Facts = list[tuple[str, str]]


def facts(source: Source) -> Facts:
    """Return the provenance facts, those recorded by uprof first."""
    recorded = recorded_facts(source)
    known = {name for name, _ in recorded}
    producer = source.detection.producer
    return [
        *recorded,
        *([("made by", producer)] if producer and "producer" not in known else []),
        *_devices(source),
        *(_ranks(source) if "rank" not in known else []),
        *(_hosts(source) if "host" not in known else []),
        *_meta_data(source),
    ]


def _devices(source: Source) -> Facts:
    return [
        (f"device {number}", str(name))
        for number, name in source.rows("SELECT id, name FROM NPU_INFO")
        if isinstance(number, int) and number >= 0 and name not in NOTHING_KNOWN
    ]


def _ranks(source: Source) -> Facts:
    return [
        (
            f"rank of device {device}" if isinstance(device, int) and device >= 0 else "rank",
            str(rank),
        )
        for rank, device in source.rows("SELECT rankId, deviceId FROM RANK_DEVICE_MAP")
        if isinstance(rank, int) and rank >= 0
    ]


def _hosts(source: Source) -> Facts:
    return [
        ("host", str(name))
        for (name,) in source.rows("SELECT hostName FROM HOST_INFO")
        if name not in NOTHING_KNOWN
    ]


def _meta_data(source: Source) -> Facts:
    result: Facts = []
    for name, value in source.rows("SELECT name, value FROM META_DATA"):
        if name == "SCHEMA_VERSION":
            result.append(("schema version", str(value)))
        elif name == "ENV_VARIABLES" and value:
            result += _environment(str(value))
    return result


def _environment(text: str) -> Facts:
    """Return the environment variables in the JSON that torch_npu writes."""
    try:
        variables = json.loads(text)
    except (ValueError, RecursionError):
        return []
    if not isinstance(variables, dict):
        return []
    return [
        (str(name), without_secrets(str(name), str(value)))
        for name, value in variables.items()
        if value not in ("", None)
    ]


# Longer durations (13 days) and later times (year 2116) are invalid.
MAX_DURATION_NS = 1 << 50
MAX_TIME_NS = 1 << 62


def possible(start_ns: Ints, duration_ns: Ints) -> Bools:
    """Return a mask of the intervals with valid times and durations."""
    result = (start_ns >= 0) & (start_ns <= MAX_TIME_NS)
    result &= duration_ns >= 0
    result &= duration_ns <= MAX_DURATION_NS
    return result


def device_name(number: int) -> str:
    """Return the name of a device, from its number."""
    return "unknown device" if number < 0 else f"device {number}"
