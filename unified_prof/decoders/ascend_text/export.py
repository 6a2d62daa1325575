"""A text export of torch_npu: which files there are, and what lies round them."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from unified_prof.columns import Sink
from unified_prof.errors import RawFormatError

TRACE = "trace_view.json"
KERNELS = "kernel_details.csv"
ALLOCATIONS = "operator_memory.csv"
TOTALS = "memory_record.csv"
MODULES = "npu_module_mem.csv"
OUTPUT_FOLDER = "ASCEND_PROFILER_OUTPUT"

# Sums and cuts of what the others hold; our own reports compute them.
DERIVED = frozenset(
    "operator_details.csv op_statistic.csv api_statistic.csv task_time.csv step_trace_time.csv"
    " communication.json communication_matrix.json analyse.done".split()
)
_LONGEST_CELL = 16 << 20
_DEVICE = re.compile(r"NPU:(\d{1,4})")


@dataclass(frozen=True, slots=True)
class Export:
    """The folder in which the files lie."""

    folder: Path
    trace: Path

    @property
    def _is_whole(self) -> bool:
        """Whether the trace lies among its tables; renamed, it was taken away from them."""
        return self.trace.name == TRACE

    @property
    def around(self) -> Path:
        """The folder in which `profiler_info*.json` would lie."""
        return self.folder.parent if self.folder.name == OUTPUT_FOLDER else self.folder

    def file(self, name: str) -> Path | None:
        """Return one of the files, None where it is not there."""
        path = self.folder / name
        return path if self._is_whole and path.is_file() else None

    def others(self) -> list[str]:
        """Return tables of the folder that nothing here reads."""
        if not self._is_whole:
            return []
        known = {TRACE, KERNELS, ALLOCATIONS, TOTALS, MODULES} | DERIVED
        names = (child.name for child in self.folder.iterdir())
        return sorted(name for name in names if name.endswith(".csv") and name not in known)


def find_export(path: Path) -> Export | None:
    """Return the export that a file or folder is, None where it is none."""
    if path.is_file():
        return Export(path.resolve().parent, path)
    for folder in (path, path / OUTPUT_FOLDER):
        if (folder / TRACE).is_file():
            return Export(folder, folder / TRACE)
    return None


def read_rows(path: Path, needed: tuple[str, ...], sink: Sink) -> Iterator[dict[str, str]]:
    """Yield the rows of a table, cells without the spaces and tabs round them.

    Rows of another width are counted and left out.

    Raises:
        RawFormatError: it cannot be read, or lacks a column.
    """
    csv.field_size_limit(_LONGEST_CELL)
    try:
        with path.open(encoding="utf-8-sig", errors="backslashreplace", newline="") as file:
            rows = csv.reader(file)
            names = [cell.strip() for cell in next(rows, [])]
            if missing := [name for name in needed if name not in names]:
                raise RawFormatError(
                    f"{path} has no column {', '.join(missing)}", slug="damaged-recording"
                )
            for row in rows:
                if len(row) == len(names):
                    yield dict(zip(names, map(str.strip, row), strict=True))
                elif row:
                    told = f"{path}: line {rows.line_num} has {len(row)} cells of {len(names)}"
                    sink.anomaly("damaged_row", 1, told)
    except (OSError, csv.Error) as err:
        raise RawFormatError(f"{path}: cannot be read: {err}", slug="cannot-read") from err


def device_of(text: str) -> int | None:
    """Return the number in `NPU:n`."""
    found = _DEVICE.fullmatch(text)
    return int(found[1]) if found else None
