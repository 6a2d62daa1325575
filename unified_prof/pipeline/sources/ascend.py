"""Sources of Ascend NPU recordings: PROF_* and *_ascend_pt directories, text exports of torch_npu.

Decoders are imported where they are used, because `uprof --help` lists the sources.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from unified_prof.decoders.compression import head_of
from unified_prof.pipeline import analysis_db
from unified_prof.pipeline.outputs import make_directory
from unified_prof.pipeline.sources.base import DecodeContext, DecodeResult, Match, Source
from unified_prof.sqlite.atomic import replacing
from unified_prof.sqlite.reader import open_report

if TYPE_CHECKING:
    from unified_prof.base.columns import Sink
    from unified_prof.decoders.ascend_text.events import Export


_PROF_NAME = re.compile(r"PROF_.+")
_PART = re.compile(r"host|device_\d{1,4}")
_DATABASE = re.compile(r"msprof_\d{1,16}\.db")
_DATABASE_OR_PARTIAL = re.compile(rf"{_DATABASE.pattern}(?:\Z|.*\.partial)")
_DEVICE_INFO = re.compile(r"info\.json\.\d{1,4}")


class Prof(Source):
    """Raw data of Ascend devices and their host.

    Viewers expect one `PROF_*/msprof_<14 digits>.db`, so the report is written into the recording,
    or into a directory with the recording's name in the output directory.
    """

    kind = "prof"
    description = "an Ascend PROF_* directory"
    command = "build"
    report_is_inside = True

    def sniff(self, path: Path) -> Match:
        """Check for host/ and device_<N>/ with their info.json; otherwise check the name."""
        try:
            if not path.is_dir():
                return Match.NO
            with os.scandir(path) as entries:
                names = sorted(entry.name for entry in entries)
        except OSError:
            return Match.CERTAIN if _PROF_NAME.fullmatch(path.name) else Match.NO
        parts = [path / name for name in names if _PART.fullmatch(name)]
        inside = list(map(_names_in, parts))
        if any(map(_DATABASE_OR_PARTIAL.match, names)) and all(
            found is not None and all(map(_DEVICE_INFO.fullmatch, found)) for found in inside
        ):
            return Match.NO  # a directory made for a report with the files of `_copy_device_info`
        has_info = any(name.startswith("info.json") for found in inside for name in found or ())
        if has_info or _PROF_NAME.fullmatch(path.resolve().name):
            return Match.CERTAIN
        return Match.POSSIBLE if any(part.is_dir() for part in parts) else Match.NO

    def decode(self, path: Path, sink: Sink, context: DecodeContext) -> DecodeResult:
        """Write all tables that the recording has data for; see `decoders.prof`."""
        from unified_prof.decoders.prof.directory import ProfDirectory
        from unified_prof.decoders.prof.recording import (
            decode_recording,
            report_coverage,
            write_coverage,
        )

        prof = ProfDirectory(path)
        report_coverage(prof, sink)
        decode_recording(prof, sink, context.stage)
        write_coverage(prof, sink)
        return DecodeResult()

    def identity(self, path: Path) -> Mapping[str, str]:
        """Return the name, which is unique because msprof adds the time and random characters."""
        return {"recording": path.resolve().name}

    def modified_ns(self, path: Path) -> int:
        """Return the Unix time in ns of the last change to a raw file."""
        times = [0]
        for part in path.iterdir():
            if _PART.fullmatch(part.name):
                for directory, _, files in os.walk(part):
                    times += [Path(directory, name).lstat().st_mtime_ns for name in files]
        return max(times)

    def write_companions(self, path: Path, report: Path, *, force: bool) -> None:
        """Write the analyses of collectives that msprof and viewers expect.

        Existing files of other tools are kept unless `force` is true. If the report is not written
        into the recording, the files in which readers look up devices and ranks are copied, too.
        """
        directory = report.parent
        is_apart = not directory.samefile(path)
        if is_apart:
            _copy_device_info(path, directory)
        with open_report(report) as opened:
            has_collectives = bool(opened.rows("SELECT 1 FROM COMMUNICATION_TASK_INFO LIMIT 1"))
            if not has_collectives and not is_apart:
                return
            from unified_prof.pipeline.analysis_db.collectives import read_details

            details = read_details(path)
            for write, name, is_wanted in (
                (analysis_db.write_communication, analysis_db.COMMUNICATION_FILE, has_collectives),
                (analysis_db.write_analysis, analysis_db.FILE_NAME, True),
            ):
                if is_wanted and (force or not (directory / name).exists()):
                    write(opened, directory, overwrite=force, details=details)

    def undecodable(self, path: Path) -> tuple[str, ...]:
        """Return the chips and kinds of files that cannot be decoded."""
        from unified_prof.decoders.prof.directory import ProfDirectory
        from unified_prof.decoders.prof.recording import undecoded

        return undecoded(ProfDirectory(path))

    def report_path(self, path: Path, directory: Path | None, name: str) -> Path:
        """Return `msprof_<local time>.db` in the recording, or in a directory named after it."""
        parent = path if directory is None else directory / name
        return parent / f"msprof_{time.strftime('%Y%m%d%H%M%S')}.db"

    def existing_reports(self, target: Path) -> list[Path]:
        """Return the databases that viewers could open instead of this one."""
        if not target.parent.is_dir():
            return []
        return sorted(path for path in target.parent.iterdir() if _DATABASE.fullmatch(path.name))


def _names_in(part: Path) -> list[str] | None:
    try:
        return os.listdir(part)  # noqa: PTH208 (faster than Path.iterdir)
    except OSError:
        return None


def _copy_device_info(recording: Path, directory: Path) -> None:
    """Copy device_<N>/info.json.<N>, which lists the devices, into the directory of a report.

    msprof-analyze treats all recordings without a rank as the same rank; if the rank is -1
    (unknown), it numbers them. Raises OutputError if it cannot be written.
    """
    for part in sorted(recording.iterdir()):
        files = sorted(part.iterdir()) if _PART.fullmatch(part.name) and part.is_dir() else []
        for info in files:
            if not _DEVICE_INFO.fullmatch(info.name) or not info.is_file():
                continue
            make_directory(directory / part.name)
            with replacing(directory / part.name / info.name, overwrite=True) as partial:
                partial.write_bytes(_with_rank(info.read_bytes()))


def _with_rank(info: bytes) -> bytes:
    try:
        document = json.loads(info)
    except (ValueError, RecursionError):
        return info
    if not isinstance(document, dict) or "rank_id" in document:
        return info
    return json.dumps({**document, "rank_id": -1}).encode()


_INFO = re.compile(r"profiler_info(?:_(\d{1,9}))?\.json")
_NO_DEVICES = "Level_none"
_PROF_IN_ASCEND_PT = re.compile(r"PROF_\d+_\d+_[0-9a-zA-Z]+")


class AscendPt(Source):
    """Raw data of PyTorch and Ascend devices; the report has torch_npu's file names and layout."""

    kind = "ascend_pt"
    description = "a torch_npu *_ascend_pt directory"
    layouts = frozenset({"plain", "ascend-pt"})
    report_is_inside = True
    report_names_rank = True

    def sniff(self, path: Path) -> Match:
        """Check for FRAMEWORK/ with its files, or for profiler_info*.json with PROF_*."""
        try:
            if not path.is_dir():
                return Match.NO
            names = [child.name for child in path.iterdir()]
            if "FRAMEWORK" in names and any(
                child.name.startswith("torch.") for child in (path / "FRAMEWORK").iterdir()
            ):
                return Match.CERTAIN
        except OSError:
            return Match.NO
        has_info = any(map(_INFO.fullmatch, names))
        return Match.CERTAIN if has_info and any(map(_PROF_IN_ASCEND_PT.match, names)) else Match.NO

    def decode(self, path: Path, sink: Sink, context: DecodeContext) -> DecodeResult:
        """Write the tables of torch_npu and msprof; see `decoders.ascend_pt`."""
        from unified_prof.decoders.ascend_pt import recording

        decoded = recording.decode(path, sink, context.stage)
        return DecodeResult(
            facts={"decoder": "ascend_pt", "rank": decoded.rank},
            figures={
                "operators": decoded.operators,
                "connections": decoded.connections,
                "devices": list(decoded.devices),
                "rank": decoded.rank,
            },
            rank=decoded.rank,
        )

    def has_enums(self, path: Path) -> bool:
        """Return False without PROF_*: the database then contains only PyTorch tables."""
        return _prof_in(path) is not None

    def undecodable(self, path: Path) -> tuple[str, ...]:
        """Return the data of PROF_* that cannot be decoded."""
        prof = _prof_in(path)
        return () if prof is None else Prof().undecodable(prof)

    def modified_ns(self, path: Path) -> int:
        """Return the Unix time in ns of the last change to a raw file."""
        prof = _prof_in(path)
        files = [child for child in path.iterdir() if analysis_db.DESCRIPTION.fullmatch(child.name)]
        if (path / "FRAMEWORK").is_dir():
            files += (path / "FRAMEWORK").iterdir()
        times = [file.lstat().st_mtime_ns for file in files]
        return max(times + ([Prof().modified_ns(prof)] if prof is not None else []), default=0)

    def stem(self, path: Path) -> str:
        """Return the name without `_ascend_pt`."""
        return path.resolve().name.removesuffix(analysis_db.DIRECTORY_SUFFIX)

    def rank(self, path: Path) -> int | None:
        """Return the rank in `profiler_info*.json`."""
        from unified_prof.decoders.ascend_pt.folder import AscendFolder

        return AscendFolder(path).rank

    def report_path(self, path: Path, directory: Path | None, name: str) -> Path:
        """Return the path of torch_npu's database in the recording, or in `<name>_ascend_pt`."""
        outer = path if directory is None else directory / f"{name}{analysis_db.DIRECTORY_SUFFIX}"
        database = analysis_db.database_name(self.rank(path))
        return outer / analysis_db.OUTPUT_DIRECTORY / database

    def existing_reports(self, target: Path) -> list[Path]:
        """Return the databases that viewers could open instead of this one.

        A lone analysis.db is ignored: it is written first, so a killed process may leave it behind.
        """
        return analysis_db.databases_in(target.parents[1])

    def has_description(self, path: Path) -> bool:
        """Return True if profiler_info*.json exists."""
        return analysis_db.has_description(path)

    def write_companions(self, path: Path, report: Path, *, force: bool) -> None:
        """Write analysis.db and copy torch_npu's description of the recording.

        As in torch_npu, no analysis is written without PROF_* or at the lowest profiling level.
        """
        from unified_prof.decoders.ascend_pt.folder import AscendFolder

        folder = AscendFolder(path)
        if folder.prof is not None and folder.level != _NO_DEVICES:
            from unified_prof.pipeline.analysis_db.collectives import read_details

            details = read_details(folder.prof)
            with open_report(report) as opened:
                analysis_db.write_analysis(opened, report.parent, overwrite=True, details=details)
        elif force:
            report.with_name(analysis_db.FILE_NAME).unlink(missing_ok=True)
        analysis_db.copy_description(path, report.parents[1])

    def identity(self, path: Path) -> Mapping[str, str]:
        """Return the name, which torch_npu builds from host, process and time."""
        return {"recording": path.resolve().name}


def _prof_in(path: Path) -> Path | None:
    found = sorted(child for child in path.iterdir() if _PROF_IN_ASCEND_PT.match(child.name))
    return next((child for child in found if child.is_dir()), None)


# torch_npu writes a list, and times as texts: no other profiler does both.
_TRACE_VIEW = re.compile(rb'\A(?:\xef\xbb\xbf)?\s*\[.*"ts":\s*"\d{1,20}\.\d{1,9}"', re.DOTALL)
_EXPORTED_TABLE = re.compile(
    r"(?:kernel_details|operator_details|api_statistic|step_trace_time)\.csv"
)


class AscendText(Source):
    """Text export of torch_npu, used if the more complete raw data is no longer available."""

    kind = "ascend_text"
    description = "a torch_npu text export (trace_view.json or its directory)"
    layouts = frozenset({"plain", "ascend-pt"})

    def sniff(self, path: Path) -> Match:
        """Check the first bytes of a file, or the trace and other files in a directory."""
        from unified_prof.decoders.ascend_text.events import OUTPUT_FOLDER, find_export

        try:
            if path.is_file():
                found = _TRACE_VIEW.match(head_of(path) or b"")
                return Match.POSSIBLE if found else Match.NO
            export = find_export(path)
            if export is None or AscendPt().sniff(path) is not Match.NO:
                return Match.NO
            names = [child.name for child in export.folder.iterdir()]
            outer_names = [child.name for child in export.around.iterdir()]
        except OSError:
            return Match.NO
        if analysis_db.databases_in(export.around):
            return Match.POSSIBLE  # torch_npu's databases have more
        is_certain = (
            export.folder.name == OUTPUT_FOLDER
            or any(map(_EXPORTED_TABLE.fullmatch, names))
            or any(map(_INFO.fullmatch, outer_names))
        )
        return Match.CERTAIN if is_certain else Match.POSSIBLE

    def decode(self, path: Path, sink: Sink, context: DecodeContext) -> DecodeResult:
        """Write all tables that the export has data for; see `decoders.ascend_text`."""
        from unified_prof.decoders.ascend_text import recording

        decoded = recording.decode(path, sink, context.enums, context.stage)
        return DecodeResult(
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

    def has_description(self, path: Path) -> bool:
        """Return True if the export is in the directory of its recording."""
        return analysis_db.has_description(_export(path).around)

    def write_companions(self, path: Path, report: Path, *, force: bool) -> None:
        """Copy torch_npu's description of the recording if the layout is torch_npu's."""
        if report.parent.name == analysis_db.OUTPUT_DIRECTORY:
            analysis_db.copy_description(_export(path).around, report.parents[1])

    def identity(self, path: Path) -> Mapping[str, str]:
        """Return the name of the recording and the length of its trace."""
        export = _export(path)
        name = path.name if path.is_file() else export.around.resolve().name
        return {"trace": name, "trace_bytes": str(export.trace.stat().st_size)}

    def modified_ns(self, path: Path) -> int:
        """Return the Unix time in ns of the last change to a file of the export."""
        return max(child.lstat().st_mtime_ns for child in _export(path).folder.iterdir())

    def rank(self, path: Path) -> int | None:
        """Return the rank in the name of `profiler_info_<rank>.json`."""
        try:
            names = [child.name for child in _export(path).around.iterdir()]
        except OSError:
            return None
        found = (_INFO.fullmatch(name) for name in names)
        ranks = {int(match[1]) for match in found if match and match[1]}
        return ranks.pop() if len(ranks) == 1 else None

    def stem(self, path: Path) -> str:
        """Return the name of torch_npu's directory, or of the trace if it is a single file."""
        export = _export(path)
        if path.is_file() and export.folder.name != analysis_db.OUTPUT_DIRECTORY:
            return path.name.partition(".")[0] or path.name
        return export.around.resolve().name.removesuffix(analysis_db.DIRECTORY_SUFFIX)


def _export(path: Path) -> Export:
    from unified_prof.decoders.ascend_text.events import find_export

    export = find_export(path)
    assert export is not None, path
    return export
