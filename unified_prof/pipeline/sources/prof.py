"""PROF_* directories, which CANN's msprof and torch_npu leave of Ascend devices."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from unified_prof.pipeline.outputs import make_directory
from unified_prof.pipeline.sources.base import Decoded, Ground, Sign, Source
from unified_prof.store.atomic import replacing

if TYPE_CHECKING:
    from unified_prof.columns import Sink

_NAME = re.compile(r"PROF_.+")
_PART = re.compile(r"host|device_\d{1,4}")
_DATABASE = re.compile(r"msprof_\d{1,16}\.db")
_REPORT = re.compile(rf"{_DATABASE.pattern}(?:\Z|.*\.partial)")
"""The same, and what was to become one."""
_DEVICE_INFO = re.compile(r"info\.json\.\d{1,4}")


class Prof(Source):
    """Raw data of Ascend devices and their host, and the report beside it.

    Viewers look for `PROF_*/msprof_<14 digits>.db`, one in each folder. So the report lies inside
    the recording, or in a folder of the recording's name where another place is asked for.
    """

    kind = "prof"
    what = "an Ascend PROF_* directory"
    command = "build"
    inside = True

    def sniff(self, path: Path) -> Sign:
        """Tell by the parts host/ and device_<N>/ with their info.json, else by the name."""
        try:
            if not path.is_dir():
                return Sign.NO
            with os.scandir(path) as entries:
                inside = sorted(entry.name for entry in entries)
        except OSError:
            return Sign.SURE if _NAME.fullmatch(path.name) else Sign.NO
        parts = [path / name for name in inside if _PART.fullmatch(name)]
        if any(map(_REPORT.match, inside)) and all(map(_holds_info_only, parts)):
            return Sign.NO  # made for a report
        if any(_has_info(part) for part in parts) or _NAME.fullmatch(path.resolve().name):
            return Sign.SURE
        return Sign.MAYBE if any(part.is_dir() for part in parts) else Sign.NO

    def decode(self, path: Path, sink: Sink, ground: Ground) -> Decoded:
        """Write every table that the recording can feed; see `decoders.prof`."""
        from unified_prof.decoders.prof.coverage import undecoded
        from unified_prof.decoders.prof.raw.directory import ProfDirectory
        from unified_prof.decoders.prof.recording import decode_recording

        prof = ProfDirectory(path)
        for what in undecoded(prof):
            sink.anomaly("undecoded_data", 1, what)
        decode_recording(prof, sink, ground.stage)
        return Decoded()

    def identity(self, path: Path) -> Mapping[str, str]:
        """Return its name, which msprof makes of a time and a random text."""
        return {"recording": path.resolve().name}

    def changed_ns(self, path: Path) -> int:
        """Return when a raw file was last written to, ns since 1970."""
        times = [0]
        for part in path.iterdir():
            if _PART.fullmatch(part.name):
                for folder, _, files in os.walk(part):
                    times += [Path(folder, name).lstat().st_mtime_ns for name in files]
        return max(times)

    def complete(self, path: Path, report: Path, *, force: bool) -> None:
        """Write what is known of collectives: as msprof leaves it, and as viewers ask for it.

        What somebody else has left there stays, unless `force` is given. A folder of its own gets
        what readers tell devices and ranks by, as they look for PROF_* directories.
        """
        from unified_prof.store.reader import open_report

        folder = report.parent
        is_own_folder = not folder.samefile(path)
        if is_own_folder:
            _copy_devices(path, folder)
        with open_report(report) as opened:
            has_collectives = bool(opened.rows("SELECT 1 FROM COMMUNICATION_TASK_INFO LIMIT 1"))
            if not has_collectives and not is_own_folder:
                return
            from unified_prof.pipeline import analysis_db

            recorded = analysis_db.read_recorded(path)
            for write, place, is_wanted in (
                (
                    analysis_db.write_communication,
                    analysis_db.COMMUNICATION_FILE,
                    has_collectives,
                ),
                (
                    analysis_db.write_analysis,
                    analysis_db.FILE_NAME,
                    has_collectives or is_own_folder,
                ),
            ):
                if is_wanted and (force or not (folder / place).exists()):
                    write(opened, folder, overwrite=force, recorded=recorded)

    def undecodable(self, path: Path) -> tuple[str, ...]:
        """Say which chips and kinds of files have a table that nothing here fills."""
        from unified_prof.decoders.prof.coverage import undecoded
        from unified_prof.decoders.prof.raw.directory import ProfDirectory

        return undecoded(ProfDirectory(path))

    def target(self, path: Path, folder: Path | None, name: str) -> Path:
        """Return `msprof_<local time>.db` in the recording, or in a folder named after it."""
        moment = time.strftime("%Y%m%d%H%M%S")
        return (path if folder is None else folder / name) / f"msprof_{moment}.db"

    def reports_at(self, target: Path) -> list[Path]:
        """Return the databases that viewers would take for this one."""
        if not target.parent.is_dir():
            return []
        return sorted(p for p in target.parent.iterdir() if _DATABASE.fullmatch(p.name))


def _has_info(part: Path) -> bool:
    try:
        with os.scandir(part) as entries:
            return any(entry.name.startswith("info.json") for entry in entries)
    except OSError:
        return False


def _holds_info_only(part: Path) -> bool:
    """Tell whether a part is what `_copy_devices` makes: every recorded one holds more."""
    try:
        with os.scandir(part) as entries:
            return all(_DEVICE_INFO.fullmatch(entry.name) for entry in entries)
    except OSError:
        return False


def _copy_devices(recording: Path, folder: Path) -> None:
    """Copy what says which devices there are, device_<N>/info.json.<N>, beside a report.

    msprof-analyze takes all recordings for one rank that do not say theirs: -1, not known, has it
    number them.

    Raises:
        OutputError: it cannot be written.
    """
    for part in sorted(recording.iterdir()):
        found = sorted(part.iterdir()) if _PART.fullmatch(part.name) and part.is_dir() else []
        for info in found:
            if not _DEVICE_INFO.fullmatch(info.name) or not info.is_file():
                continue
            make_directory(folder / part.name)
            with replacing(folder / part.name / info.name, overwrite=True) as partial:
                partial.write_bytes(_with_rank(info.read_bytes()))


def _with_rank(info: bytes) -> bytes:
    try:
        told = json.loads(info)
    except ValueError:
        return info
    if not isinstance(told, dict) or "rank_id" in told:
        return info
    return json.dumps({**told, "rank_id": -1}).encode()
