"""Run-to-run variation of unchanged workloads, measured by `gate --self-test`, used by gates.

Stored in `$XDG_STATE_HOME/uprof/noise.json` (`~/.local/state`), one entry per host, device and
workload. The file may be deleted at any time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from unified_prof.compare.comparable import TIMES, Run, program_times
from unified_prof.compare.confidence import Noise
from unified_prof.compare.gate import parse_noise
from unified_prof.errors import OutputError, StoreError, UsageError
from unified_prof.sqlite.atomic import output_errors, replacing

MIN_RUNS = 3
_VERSION = 1
_MAX_BYTES = 1 << 20  # Maximum size of the file in bytes.


class Entry(msgspec.Struct, frozen=True):
    """Run-to-run variation of one workload on one device."""

    host: str
    device: str
    workload: str
    relative: float
    degrees: float
    learned: str  # Time of the measurement, ISO 8601.


class _File(msgspec.Struct):
    version: int
    entries: list[Entry]


def path() -> Path:
    """Return the path of the file; a relative XDG_STATE_HOME is ignored, as the standard says.

    Raises OutputError if there is no home directory.
    """
    base = Path(os.environ.get("XDG_STATE_HOME", ""))
    if not base.is_absolute():
        try:
            base = Path.home() / ".local" / "state"
        except RuntimeError as err:
            raise OutputError(
                "no home directory to store the run-to-run variation in",
                hint="set XDG_STATE_HOME",
                slug="no-home-folder",
            ) from err
    return base / "uprof" / "noise.json"


def learn(run: Run) -> Noise:
    """Return the run-to-run variation of a workload, that of its noisiest time.

    Raises UsageError if there are fewer than MIN_RUNS runs, or they have no times.
    """
    found = []
    run, _, _ = program_times(run, run)
    for metric in TIMES:
        runs = run.sample(metric).runs if metric in run.totals else []
        for statistic in (np.median, np.min):
            values = np.array([float(statistic(one)) for one in runs if len(one)])
            if len(values) >= MIN_RUNS and values.min() > 0:
                found.append((float(np.std(np.log(values), ddof=1)), len(values) - 1.0))
    if not found:
        raise UsageError(
            f"measuring the run-to-run variation needs {MIN_RUNS} runs with times",
            slug="too-few-runs",
        )
    relative, degrees = max(found)
    return Noise(relative, degrees, "these runs")


class SelfTest(Struct, frozen=True):
    """Smallest changes that a machine detects with a workload."""

    facts: Mapping[str, str]
    noise: Noise
    # Number of rounds -> smallest change that is usually detected.
    smallest: Mapping[int, float]
    seconds_per_round: float
    max_regress: float
    file: Path  # File with the run-to-run variation.

    def fields(self) -> dict[str, Any]:
        """Return the result as plain data."""
        return {
            "format_version": 2,
            **{name: self.facts.get(name) for name in ("host", "device", "workload")},
            "runs": int(self.noise.degrees) + 1,
            "relative_noise": self.noise.relative,
            "max_regress": self.max_regress,
            "smallest_change": {str(count): one for count, one in self.smallest.items()},
            "seconds_per_round": self.seconds_per_round,
            "file": str(self.file),
        }

    def lines(self) -> Iterator[str]:
        """Yield the result as lines of text."""
        changes = ", ".join(
            f"{_change(one)} in {count} rounds ({count * self.seconds_per_round:.0f} s)"
            for count, one in self.smallest.items()
        )
        yield f"smallest change that this machine detects: {changes}"
        what = f"{self.facts.get('workload', '?')} on {self.facts.get('device', '?')}"
        variation = f"{self.noise.relative:.1%} (n = {int(self.noise.degrees) + 1})"
        yield f"{what}: run-to-run variation {variation}, saved to {self.file}"


def store_self_test(
    run: Run, smallest: Mapping[int, float], seconds_per_round: float, max_regress: float
) -> SelfTest:
    """Store the run-to-run variation of a workload that was run against itself.

    Raises OutputError if the file cannot be written, StoreError if the existing file is not valid,
    and UsageError if there are fewer than MIN_RUNS runs, or they have no times.
    """
    noise = learn(run)
    return SelfTest(run.facts, noise, smallest, seconds_per_round, max_regress, save(run, noise))


def _change(share: float) -> str:
    """Format a change; above 100 % as a factor."""
    return f"{share:.1%}" if share < 1 else f"{1 + share:,.3g} x" if share < 99 else "> 100 x"


def save(run: Run, noise: Noise) -> Path:
    """Store the variation of a run's workload, replacing an earlier entry, and return the file.

    Raises OutputError if the file cannot be written, and StoreError if the existing file is not
    valid.
    """
    file, key = path(), _key(run)
    kept = [one for one in _entries() if (one.host, one.device, one.workload) != key]
    learned = datetime.now(timezone.utc).isoformat(timespec="seconds")
    kept.append(Entry(*key, noise.relative, noise.degrees, learned))
    data = msgspec.json.format(msgspec.json.encode(_File(_VERSION, kept)), indent=2)
    with output_errors(file):
        file.parent.mkdir(parents=True, exist_ok=True)
    with replacing(file, overwrite=True) as partial:
        partial.write_bytes(data + b"\n")
    return file


def load(run: Run) -> Noise | None:
    """Return the stored variation for the host, device and workload of a run, or None.

    If the workload has no entry, the noisiest workload of the same device is used. Raises
    StoreError if the file is not valid.
    """
    host, device, workload = _key(run)
    known = [one for one in _entries() if (one.host, one.device) == (host, device)]
    own = [one for one in known if one.workload == workload]
    if not known:
        return None
    entry = own[0] if own else max(known, key=lambda one: one.relative)
    source = f"{entry.workload} on {entry.host}, {entry.learned}"
    return Noise(entry.relative, entry.degrees, source)


def noise_of(text: str | None, run: Run) -> Noise | None:
    """Return the run-to-run variation given by `text`, else the one stored for the device of `run`.

    Raises UsageError if the text is not a share, and StoreError if the stored value cannot be read.
    """
    return load(run) if text is None else parse_noise(text)


def _key(run: Run) -> tuple[str, str, str]:
    facts = run.facts
    return facts.get("host", "?"), facts.get("device", "?"), facts.get("workload", "?")


def _entries() -> list[Entry]:
    try:
        file = path()
    except OutputError:
        return []
    try:
        with file.open("rb") as stream:
            data = stream.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        return []
    except OSError as err:
        raise StoreError(f"{file} cannot be read: {err.strerror}", slug="cannot-read") from err
    try:
        found = msgspec.json.decode(data, type=_File)
    except msgspec.MsgspecError as err:
        raise StoreError(
            f"{file} is not a valid file of run-to-run variation: {err}",
            hint="delete it",
            slug="damaged-file",
        ) from None
    if found.version != _VERSION:
        raise StoreError(
            f"{file} has version {found.version}, this build reads {_VERSION}",
            hint="delete it",
            slug="other-version",
        )
    return [one for one in found.entries if one.relative >= 0 and one.degrees > 0]
