"""Text exports of torch_npu's profiler: trace_view.json and the tables beside it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from unified_prof.pipeline import ascend_layout
from unified_prof.pipeline.sources.ascend_pt import AscendPt
from unified_prof.pipeline.sources.base import Decoded, Ground, Sign, Source

if TYPE_CHECKING:
    from unified_prof.columns import Sink
    from unified_prof.decoders.ascend_text.export import Export

_HEAD_BYTES = 32 << 10
# torch_npu writes a list, and times as texts: no other profiler does both.
_SIGN = re.compile(rb'\A(?:\xef\xbb\xbf)?\s*\[.*"ts":\s*"\d{1,20}\.\d{1,9}"', re.DOTALL)
_BESIDE = re.compile(r"(?:kernel_details|operator_details|api_statistic|step_trace_time)\.csv")
_INFO = re.compile(r"profiler_info(?:_(\d{1,9}))?\.json")


class AscendText(Source):
    """What torch_npu exports where its raw data are gone; those say more and go first."""

    kind = "ascend_text"
    what = "an exported torch_npu trace_view.json, or its folder"
    command = "import"
    layouts = frozenset({"plain", "ascend-pt"})

    def sniff(self, path: Path) -> Sign:
        """Tell a folder by the trace and what lies round it, a file by its first bytes."""
        from unified_prof.decoders.ascend_text.export import OUTPUT_FOLDER, find_export

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
        if ascend_layout.databases_in(export.around):
            return Sign.MAYBE  # torch_npu's databases say more
        is_sure = (
            export.folder.name == OUTPUT_FOLDER
            or any(map(_BESIDE.fullmatch, inside))
            or any(map(_INFO.fullmatch, around))
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
        return ascend_layout.is_described(_export(path).around)

    def complete(self, path: Path, report: Path, *, force: bool) -> None:
        """Put what torch_npu says of the recording beside the report, in its folder."""
        if report.parent.name == ascend_layout.OUTPUT_FOLDER:
            ascend_layout.copy_description(_export(path).around, report.parents[1])

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
        ranks = {int(found[1]) for name in names if (found := _INFO.fullmatch(name)) and found[1]}
        return ranks.pop() if len(ranks) == 1 else None

    def stem(self, path: Path) -> str:
        """Return the name of the folder that torch_npu made, or of a lone trace."""
        export = _export(path)
        if path.is_file() and export.folder.name != "ASCEND_PROFILER_OUTPUT":
            return path.stem
        return export.around.resolve().name.removesuffix(ascend_layout.FOLDER_SUFFIX)


def _export(path: Path) -> Export:
    from unified_prof.decoders.ascend_text.export import find_export

    export = find_export(path)
    assert export is not None, path
    return export
