"""`*_ascend_pt` folders, which torch_npu's profiler leaves."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from unified_prof.pipeline import ascend_layout
from unified_prof.pipeline.sources.base import Decoded, Ground, Sign, Source
from unified_prof.pipeline.sources.prof import Prof

if TYPE_CHECKING:
    from unified_prof.columns import Sink

_INFO = re.compile(r"profiler_info(?:_\d+)?\.json")
_NO_DEVICES = "Level_none"
_PROF = re.compile(r"PROF_\d+_\d+_[0-9a-zA-Z]+")


class AscendPt(Source):
    """Raw data of PyTorch and of Ascend devices, and torch_npu's databases made of them."""

    kind = "ascend_pt"
    what = "a torch_npu *_ascend_pt folder"
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
        from unified_prof.store.reader import open_report

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
