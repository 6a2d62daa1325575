"""What an analysis needs of an open report, and the facts that both families record alike.

Which reports of a run there are, and which are missing: nothing is left out without a word.

The texts of STRING_IDS, and which of them say that nothing is known.

How a recording of msprof's came to be: who made it, on which host and devices, with what set.

Which times of a recording can have been.

Recorded shapes and types of an operation's inputs, as one text for people.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.types import Ints
from unified_prof.base.columns import Ledger
from unified_prof.base.redaction import MASK, is_secret_name, redact, redact_arguments
from unified_prof.base.vocabulary import NOT_AVAILABLE
from unified_prof.recording.model import Anomaly
from unified_prof.sqlite.detect import Detection
from unified_prof.sqlite.integer_columns import Window


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


_RANK = re.compile(r"rank (\d+)")


@dataclass(frozen=True, slots=True)
class Missing:
    """A report that is not there, or cannot be read to its end."""

    what: str
    """`rank 3`, or the file where no rank is known."""
    why: str

    @property
    def rank(self) -> int | None:
        """The rank, where it is known."""
        found = _RANK.fullmatch(self.what)
        return int(found[1]) if found else None


@dataclass(frozen=True, slots=True)
class Coverage:
    """How many of the reports that should be there were read whole."""

    unit: str
    """`ranks`, or `reports` where ranks are not known."""
    expected: int
    whole: int
    missing: tuple[Missing, ...]

    @classmethod
    def of(cls, read: Iterable[str], missing: Iterable[Missing]) -> Coverage:
        """Return the coverage of reports by what they are of: `rank 3`, or a file."""
        missing = tuple(sorted(missing, key=lambda one: (one.rank is None, one.rank or 0)))
        incomplete = {one.what for one in missing}
        every = {*read} | incomplete
        unit = "ranks" if all(_RANK.fullmatch(one) for one in every) else "reports"
        return cls(unit, len(every), len(every - incomplete), missing)

    @property
    def headline(self) -> str:
        """How many there are: `7 of 8 ranks`."""
        return f"{self.whole:,} of {self.expected:,} {self.unit}"

    @property
    def reasons(self) -> list[str]:
        """Why each missing one is missing."""
        return [one.why if one.rank is None else f"{one.what}: {one.why}" for one in self.missing]

    @property
    def sentence(self) -> str:
        """All of it on one line, empty where nothing is missing."""
        return "; ".join([self.headline, *self.reasons]) if self.missing else ""


NOTHING_KNOWN = frozenset({"", NOT_AVAILABLE, "NULL", "UNKNOWN", None})
"""Texts that say that msprof does not know."""


class Strings:
    """The texts of STRING_IDS."""

    def __init__(self, source: Source) -> None:
        self._source = source

    @cached_property
    def _texts(self) -> dict[int, str]:
        return dict(self._source.rows("SELECT id, value FROM STRING_IDS"))

    def get(self, number: int) -> str | None:
        """Return the text of an id, None if there is none or it says "not available"."""
        text = self._texts.get(number)
        return None if text in NOTHING_KNOWN else str(text)

    def texts(self, numbers: Iterable[int]) -> list[str | None]:
        """Return the texts of many ids."""
        return [self.get(number) for number in numbers]


Facts = list[tuple[str, str]]


def facts(source: Source) -> Facts:
    """Return provenance; what uprof recorded itself goes before what others left."""
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
    found: Facts = []
    for name, value in source.rows("SELECT name, value FROM META_DATA"):
        if name == "SCHEMA_VERSION":
            found.append(("schema version", str(value)))
        elif name == "ENV_VARIABLES" and value:
            found += _environment(str(value))
    return found


def _environment(text: str) -> Facts:
    """Return the variables that were set, of the JSON that torch_npu writes."""
    try:
        variables = json.loads(text)
    except ValueError:
        return []
    if not isinstance(variables, dict):
        return []
    return [
        (str(name), without_secrets(str(name), str(value)))
        for name, value in variables.items()
        if value not in ("", None)
    ]


# Nothing runs on a device for two weeks, and Unix times stay below 2**62 ns until 2116.
MAX_DURATION_NS = 1 << 50
MAX_TIME_NS = 1 << 62


def possible(start_ns: Ints, duration_ns: Ints) -> NDArray[np.bool_]:
    """Return which intervals can have happened: known, in order, of this age, not endless."""
    result = (start_ns >= 0) & (start_ns <= MAX_TIME_NS)
    result &= duration_ns >= 0
    result &= duration_ns <= MAX_DURATION_NS
    return result


_TYPES = re.compile(r"[A-Za-z]")
_NO_TENSORS = frozenset(
    {
        "",
        "None",
        NOT_AVAILABLE,
        "Scalar",
        "ScalarList",
        "Int",
        "Bool",
        "Double",
        "String",
        "GenericList",
    }
)
"""Types of arguments that have no shape; the capitals are those of old releases of torch."""


def input_text(shapes: str | None, types: str | None) -> str:
    """Return recorded shapes and types of inputs as one text, those that are tensors."""
    shapes, types = shapes or "", types or ""
    if _TYPES.search(shapes) and not _TYPES.search(types):
        shapes, types = types, shapes
    shape = [one.strip() for one in shapes.strip('"').split(";")]
    kind = [one.strip() for one in types.strip('"').split(";")]
    kind += [""] * (len(shape) - len(kind))
    return ", ".join(
        f"{what.removeprefix('c10::')}[{size}]"
        for size, what in zip(shape, kind, strict=False)
        if size or what not in _NO_TENSORS
    )
