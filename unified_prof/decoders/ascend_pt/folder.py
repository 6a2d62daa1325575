"""A `*_ascend_pt` folder: what torch_npu's profiler leaves, and what it says of the recording."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from unified_prof.columns import Sink
from unified_prof.decoders.prof.raw import control
from unified_prof.decoders.prof.raw.control import Control
from unified_prof.decoders.prof.raw.directory import ProfDirectory
from unified_prof.errors import RawFormatError

FRAMEWORK = "FRAMEWORK"
METADATA = "profiler_metadata.json"

_PROF = re.compile(r"PROF_\d+_\d+_[0-9a-zA-Z]+")
_INFO = re.compile(r"profiler_info(?:_\d+)?\.json")
_OWN_NAMES = ("SCHEMA_VERSION", "UPROF_")
"""Rows of META_DATA with such names say what the file is."""
_NO_RANK = -1
_MOST_RANKS = 1 << 31

OPERATORS = "torch.op_range"
MARKS = "torch.op_mark"
MEMORY = "torch.memory_usage"
CALLS = "torch.python_tracer_func"
CALL_NAMES = "torch.python_tracer_hash"
COLLECTIONS = "torch.gc_record"
_FILES = (OPERATORS, MARKS, MEMORY, CALLS, CALL_NAMES, COLLECTIONS)
PARAMETERS = "torch.param_tensor_info"
"""Feeds no table: torch_npu reads it for its memory timeline only."""


@dataclass(frozen=True, slots=True)
class HostClock:
    """How torch_npu turns its collector's time stamps into ns since 1970."""

    counts: bool
    """Whether they are values of the system counter, and not ns of the monotonic clock."""
    mhz: float
    start_count: int
    start_monotonic_ns: int
    offset_ns: int
    """Of the epoch to the monotonic clock."""


class AscendFolder:
    """The folder and its control files; a file that cannot be read is listed in `problems`."""

    def __init__(self, path: Path) -> None:
        """Look into the folder.

        Raises:
            RawFormatError: it cannot be listed.
        """
        self.path = path
        self.problems: list[tuple[str, str]] = []
        """(anomaly name, message) of what is left out."""
        names = listed(path)
        self.prof = next((path / n for n in names if _PROF.match(n) and (path / n).is_dir()), None)
        """The PROF_* directory inside; torch_npu takes the first as well."""
        self._info_file = next((path / name for name in names if _INFO.fullmatch(name)), None)
        framework = path / FRAMEWORK
        self._framework = listed(framework) if framework.is_dir() else []

    @property
    def has_framework(self) -> bool:
        """Whether FRAMEWORK/ is there and has a file that feeds a table."""
        return any(name.startswith(_FILES) for name in self._framework)

    def file(self, name: str) -> Path | None:
        """Return a file of FRAMEWORK/ whose name begins as given, None where there is none."""
        found = [one for one in self._framework if one.startswith(name)]
        if len(found) > 1:
            self.problems.append(
                ("undecoded_data", f"{FRAMEWORK}: {', '.join(found[1:])} beside {found[0]}")
            )
        return self.path / FRAMEWORK / found[0] if found else None

    def other_files(self) -> list[str]:
        """Return the files of FRAMEWORK/ that nothing here knows."""
        known = (*_FILES, PARAMETERS)
        return [name for name in self._framework if not name.startswith(known)]

    @cached_property
    def info(self) -> Control:
        """`profiler_info*.json`; empty where it is missing or no JSON."""
        if self._info_file is None:
            return Control(self.path, {})
        try:
            return control.read_json(self._info_file)
        except RawFormatError as err:
            self.problems.append(("unreadable_file", str(err)))
            return Control(self._info_file, {})

    @cached_property
    def metadata(self) -> dict[str, str]:
        """What `profiler_metadata.json` holds, values as JSON as torch_npu writes them."""
        path = self.path / METADATA
        if not path.is_file():
            return {}
        try:
            values = control.read_json(path).values
        except RawFormatError as err:
            self.problems.append(("unreadable_file", str(err)))
            return {}
        return {str(name): _json(value) for name, value in values.items()}

    def write_metadata(self, sink: Sink) -> None:
        """Write META_DATA: what the user and torch_npu added to the recording."""
        for name, value in self.metadata.items():
            if name.startswith(_OWN_NAMES):
                self.problems.append(("reserved_name", f"{METADATA}: {name}"))
            else:
                sink.write("META_DATA", {"name": [name], "value": [value]})

    @property
    def rank(self) -> int | None:
        """The process of a distributed run; None where it was recorded without ranks."""
        rank = self.info.integer("rank_id", _NO_RANK)
        return rank if rank is not None and 0 <= rank < _MOST_RANKS else None

    @property
    def level(self) -> str:
        """`_profiler_level`: Level_none, Level0, Level1 or Level2."""
        return _inner(_inner(self.info, "config"), "experimental_config").text("_profiler_level")

    def clock(self, prof: ProfClock | None) -> HostClock:
        """Return how to read the time stamps of FRAMEWORK/.

        Args:
            prof: What PROF_* says of its host; None without PROF_*.
        """
        if self._info_file is None:
            self.problems.append(("no_profiler_info", f"{self.path} has no profiler_info*.json"))
        start, end = _inner(self.info, "start_info"), _inner(self.info, "end_info")
        counts = start.text("syscnt_enable").lower() in ("true", "1")
        mhz = _frequency(start.text("freq"))
        count, monotonic = start.integer("start_cnt", 0) or 0, start.integer("start_monotonic", 0)
        offset = 0
        if prof is not None:
            offset = prof.offset_ns
            if prof.start_count is not None and prof.start_monotonic_ns is not None:
                mhz, count, monotonic = prof.mhz, prof.start_count, prof.start_monotonic_ns
        if not offset:
            at, at_monotonic = end.integer("collectionTimeEnd"), end.integer("MonotonicTimeEnd")
            if at is None or at_monotonic is None:
                self.problems.append(
                    ("no_clock", f"{self.info.path} has no end_info: times count from the start")
                )
            else:
                offset = at - at_monotonic
        return HostClock(counts, mhz, count, monotonic or 0, offset)


@dataclass(frozen=True, slots=True)
class ProfClock:
    """What the control files of PROF_* say of the host's clock."""

    mhz: float
    start_count: int | None
    start_monotonic_ns: int | None
    offset_ns: int


def clock_of(prof: ProfDirectory) -> ProfClock:
    """Read the host's clock from a PROF_* directory."""
    part = prof.host or prof.devices[0]
    mhz, count, monotonic = 100.0, None, None
    if prof.host is not None:
        records = prof.host.info.records("CPU")
        mhz = _frequency(records[0].text("Frequency") if records else "")
        try:
            found = control.find(prof.host.path, "host_start.log", required=False)
            log = None if found is None else control.read_start_log(found)
        except RawFormatError:
            log = None
        if log is not None:
            count, monotonic = log.counter("cntvct"), log.counter("clock_monotonic_raw")
    begin = part.start.integer("collectionTimeBegin")
    begin_monotonic = part.start.integer("clockMonotonicRaw")
    if begin is None or begin_monotonic is None:
        return ProfClock(mhz, count, monotonic, 0)
    return ProfClock(mhz, count, monotonic, begin * 1000 - begin_monotonic)


def listed(path: Path) -> list[str]:
    """Return the names in a folder, sorted.

    Raises:
        RawFormatError: it cannot be listed.
    """
    try:
        return sorted(child.name for child in path.iterdir())
    except OSError as err:
        raise RawFormatError(f"cannot list {path}: {err.strerror}", slug="cannot-read") from err


def _inner(values: Control, key: str) -> Control:
    value = values.values.get(key)
    return Control(values.path, value if isinstance(value, dict) else {})


def _frequency(text: str) -> float:
    try:
        mhz = float(text)
    except ValueError:
        return 100.0
    return mhz if math.isfinite(mhz) and mhz > 0 else 100.0


def _json(value: Any) -> str:
    """Return a value as Python's own writer does, which torch_npu uses."""
    try:
        return json.dumps(value)
    except (ValueError, RecursionError):
        return msgspec.json.encode(value).decode()
