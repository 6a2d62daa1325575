"""PROF_* directories, which CANN's msprof and torch_npu leave of Ascend devices."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from unified_prof.pipeline.sources.base import Decoded, Ground, Sign, Source

if TYPE_CHECKING:
    from unified_prof.columns import Sink

_NAME = re.compile(r"PROF_.+")
_PART = re.compile(r"host|device_\d{1,4}")
_DATABASE = re.compile(r"msprof_\d{1,16}\.db")


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
        if any(_has_info(part) for part in parts):
            return Sign.SURE
        if _NAME.fullmatch(path.resolve().name):
            # Damaged, unless it is a folder of that name which was made for a report.
            return Sign.NO if any(map(_DATABASE.fullmatch, inside)) and not parts else Sign.SURE
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

        What somebody else has left there stays, unless `force` is given.
        """
        from unified_prof.pipeline import analysis_db
        from unified_prof.store.reader import open_report

        folder = report.parent
        with open_report(report) as opened:
            if not analysis_db.has_collectives(opened):
                return
            recorded = analysis_db.read_recorded(path)
            for write, place in (
                (analysis_db.write_communication, analysis_db.COMMUNICATION_FILE),
                (analysis_db.write_analysis, analysis_db.FILE_NAME),
            ):
                if force or not (folder / place).exists():
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
