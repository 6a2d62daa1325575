"""PROF_* directories, which CANN's msprof and torch_npu leave of Ascend devices.

`*_ascend_pt` folders, which torch_npu's profiler leaves.

Text exports of torch_npu's profiler: trace_view.json and the tables beside it.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from unified_prof.pipeline import analysis_db
from unified_prof.pipeline import analysis_db as ascend_layout
from unified_prof.pipeline.outputs import make_directory
from unified_prof.pipeline.sources.base import Decoded, Ground, Sign, Source
from unified_prof.sqlite.atomic import replacing

if TYPE_CHECKING:
    from unified_prof.base.columns import Sink
    from unified_prof.decoders.ascend_text.events import Export


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
        from unified_prof.decoders.prof.directory import ProfDirectory
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
        from unified_prof.sqlite.reader import open_report

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
        from unified_prof.decoders.prof.directory import ProfDirectory

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


_INFO = re.compile(r"profiler_info(?:_\d+)?\.json")
_NO_DEVICES = "Level_none"
_PROF = re.compile(r"PROF_\d+_\d+_[0-9a-zA-Z]+")


class AscendPt(Source):
    """Raw data of PyTorch and of Ascend devices, and torch_npu's databases made of them."""

    kind = "ascend_pt"
    what = "a torch_npu *_ascend_pt directory"
    command = "import"
    layouts = frozenset({"plain", "ascend-pt"})
    inside = True
    names_rank = True

    def sniff(self, path: Path) -> Sign:
        """Tell by FRAMEWORK/ with its files, or profiler_info*.json beside PROF_*."""
        try:
            if not path.is_dir():
                return Sign.NO
            names = [child.name for child in path.iterdir()]
            if "FRAMEWORK" in names and any(
                child.name.startswith("torch.") for child in (path / "FRAMEWORK").iterdir()
            ):
                return Sign.SURE
        except OSError:
            return Sign.NO
        is_named = any(map(_INFO.fullmatch, names))
        return Sign.SURE if is_named and any(map(_PROF.match, names)) else Sign.NO

    def decode(self, path: Path, sink: Sink, ground: Ground) -> Decoded:
        """Write the tables of PyTorch beside those of msprof; see `decoders.ascend_pt`."""
        from unified_prof.decoders.ascend_pt import recording

        decoded = recording.decode(path, sink, ground.stage)
        return Decoded(
            facts={"decoder": "ascend_pt", "rank": decoded.rank},
            figures={
                "operators": decoded.operators,
                "connections": decoded.connections,
                "devices": list(decoded.devices),
                "rank": decoded.rank,
            },
            rank=decoded.rank,
        )

    def wants_enums(self, path: Path) -> bool:
        """Not without PROF_*: torch_npu's database has PyTorch's tables only then."""
        return _prof_in(path) is not None

    def undecodable(self, path: Path) -> tuple[str, ...]:
        """Say what of PROF_* has a table that nothing here fills."""
        prof = _prof_in(path)
        return () if prof is None else Prof().undecodable(prof)

    def changed_ns(self, path: Path) -> int:
        """Return when a raw file was last written to, ns since 1970."""
        prof = _prof_in(path)
        files = [
            child for child in path.iterdir() if ascend_layout.DESCRIPTION.fullmatch(child.name)
        ]
        if (path / "FRAMEWORK").is_dir():
            files += (path / "FRAMEWORK").iterdir()
        times = [file.lstat().st_mtime_ns for file in files]
        return max(times + ([Prof().changed_ns(prof)] if prof is not None else []), default=0)

    def stem(self, path: Path) -> str:
        """Return its name without what all of them end in."""
        return path.resolve().name.removesuffix(ascend_layout.FOLDER_SUFFIX)

    def rank(self, path: Path) -> int | None:
        """Return the rank that `profiler_info*.json` says."""
        from unified_prof.decoders.ascend_pt.folder import AscendFolder

        return AscendFolder(path).rank

    def target(self, path: Path, folder: Path | None, name: str) -> Path:
        """Return the database of its rank where torch_npu puts it, in a folder of its kind."""
        outer = path if folder is None else folder / f"{name}{ascend_layout.FOLDER_SUFFIX}"
        database = ascend_layout.database_name(self.rank(path))
        return outer / ascend_layout.OUTPUT_FOLDER / database

    def reports_at(self, target: Path) -> list[Path]:
        """Return the databases that viewers would take for this one.

        What was made of one, analysis.db, is nothing without it: it is written first, so a process
        that was killed may have left it.
        """
        return ascend_layout.databases_in(target.parents[1])

    def describes_itself(self, path: Path) -> bool:
        """It does, unless somebody took the files away."""
        return ascend_layout.is_described(path)

    def complete(self, path: Path, report: Path, *, force: bool) -> None:
        """Write analysis.db, and put what torch_npu says of the recording beside it.

        As torch_npu does, without PROF_* or at the lowest level there is no analysis.
        """
        from unified_prof.decoders.ascend_pt.folder import AscendFolder
        from unified_prof.pipeline import analysis_db
        from unified_prof.sqlite.reader import open_report

        folder = AscendFolder(path)
        if folder.prof is not None and folder.level != _NO_DEVICES:
            recorded = analysis_db.read_recorded(folder.prof)
            with open_report(report) as opened:
                analysis_db.write_analysis(opened, report.parent, overwrite=True, recorded=recorded)
        elif force:
            report.with_name(ascend_layout.ANALYSIS).unlink(missing_ok=True)
        ascend_layout.copy_description(path, report.parents[1])

    def identity(self, path: Path) -> Mapping[str, str]:
        """Return its name, which torch_npu makes of host, process and time."""
        return {"recording": path.resolve().name}


def _prof_in(path: Path) -> Path | None:
    found = sorted(child for child in path.iterdir() if _PROF.match(child.name))
    return next((child for child in found if child.is_dir()), None)


_HEAD_BYTES = 32 << 10
# torch_npu writes a list, and times as texts: no other profiler does both.
_SIGN = re.compile(rb'\A(?:\xef\xbb\xbf)?\s*\[.*"ts":\s*"\d{1,20}\.\d{1,9}"', re.DOTALL)
_BESIDE = re.compile(r"(?:kernel_details|operator_details|api_statistic|step_trace_time)\.csv")
_INFO_ASCEND_TEXT = re.compile(r"profiler_info(?:_(\d{1,9}))?\.json")


class AscendText(Source):
    """What torch_npu exports where its raw data are gone; those say more and go first."""

    kind = "ascend_text"
    what = "an exported torch_npu trace_view.json, or its directory"
    command = "import"
    layouts = frozenset({"plain", "ascend-pt"})

    def sniff(self, path: Path) -> Sign:
        """Tell a folder by the trace and what lies round it, a file by its first bytes."""
        from unified_prof.decoders.ascend_text.events import OUTPUT_FOLDER, find_export

        try:
            if path.is_file():
                with path.open("rb") as file:
                    found = _SIGN.match(file.read(_HEAD_BYTES))
                return Sign.MAYBE if found else Sign.NO
            export = find_export(path)
            if export is None or AscendPt().sniff(path) is not Sign.NO:
                return Sign.NO
            inside = [child.name for child in export.folder.iterdir()]
            around = [child.name for child in export.around.iterdir()]
        except OSError:
            return Sign.NO
        if analysis_db.databases_in(export.around):
            return Sign.MAYBE  # torch_npu's databases say more
        is_sure = (
            export.folder.name == OUTPUT_FOLDER
            or any(map(_BESIDE.fullmatch, inside))
            or any(map(_INFO_ASCEND_TEXT.fullmatch, around))
        )
        return Sign.SURE if is_sure else Sign.MAYBE

    def decode(self, path: Path, sink: Sink, ground: Ground) -> Decoded:
        """Write what the export keeps of the recording; see `decoders.ascend_text`."""
        from unified_prof.decoders.ascend_text import recording

        decoded = recording.decode(path, sink, ground.enums, ground.stage)
        return Decoded(
            facts={"decoder": "ascend_text", "rank": decoded.rank},
            figures={
                "events": decoded.events,
                "operators": decoded.operators,
                "connections": decoded.connections,
                "device_tasks": decoded.tasks,
                "rank": decoded.rank,
            },
            summary=f"{decoded.events:,} events: {decoded.operators:,} operators with"
            f" {decoded.connections:,} connections, {decoded.tasks:,} device tasks",
            rank=decoded.rank,
        )

    def describes_itself(self, path: Path) -> bool:
        """It does where the export lies in the folder of its recording."""
        return analysis_db.is_described(_export(path).around)

    def complete(self, path: Path, report: Path, *, force: bool) -> None:
        """Put what torch_npu says of the recording beside the report, in its folder."""
        if report.parent.name == analysis_db.OUTPUT_FOLDER:
            analysis_db.copy_description(_export(path).around, report.parents[1])

    def identity(self, path: Path) -> Mapping[str, str]:
        """Return the name of the recording and the length of its trace."""
        export = _export(path)
        name = path.name if path.is_file() else export.around.resolve().name
        return {"trace": name, "trace_bytes": str(export.trace.stat().st_size)}

    def changed_ns(self, path: Path) -> int:
        """Return when a file of the export was last written to, ns since 1970."""
        export = _export(path)
        return max(child.lstat().st_mtime_ns for child in export.folder.iterdir())

    def rank(self, path: Path) -> int | None:
        """Return the rank that the name of `profiler_info_<rank>.json` says."""
        try:
            names = [child.name for child in _export(path).around.iterdir()]
        except OSError:
            return None
        ranks = {
            int(found[1])
            for name in names
            if (found := _INFO_ASCEND_TEXT.fullmatch(name)) and found[1]
        }
        return ranks.pop() if len(ranks) == 1 else None

    def stem(self, path: Path) -> str:
        """Return the name of the folder that torch_npu made, or of a lone trace."""
        export = _export(path)
        if path.is_file() and export.folder.name != "ASCEND_PROFILER_OUTPUT":
            return path.stem
        return export.around.resolve().name.removesuffix(analysis_db.FOLDER_SUFFIX)


def _export(path: Path) -> Export:
    from unified_prof.decoders.ascend_text.events import find_export

    export = find_export(path)
    assert export is not None, path
    return export
