"""Formats under attack: how to make a small input of each, and the commands that read it."""

import bz2
import gzip
import json
import lzma
import shutil
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.analysis.builders import memory_report, run_time_report, training_step
from tests.cluster import ranks, summaries
from tests.decoders.kineto.builders import call, copy, kernel, operation
from tests.decoders.kineto.builders import write as write_trace
from tests.decoders.memory_snapshot.builders import small as small_snapshot
from tests.decoders.memory_snapshot.builders import write as write_snapshot
from tests.decoders.nsys.builders import write as write_export
from tests.decoders.nsys.test_damage import WHOLE
from tests.decoders.nsys.test_parquet import as_parquet
from tests.decoders.rocm.builders import as_json, write_json
from tests.pipeline.test_sources import MAKERS
from unified_prof.sqlite.run_folder import RankEntry, note

Command = Sequence[str]

# Commands as a user gives them; IN is the input, OUT a database to be written and OUT/NAME another
# output; the current directory is that of the input.
CONVERT: tuple[Command, ...] = (("convert", "IN", "-o", "OUT", "--json"),)
# If the conversion succeeds, its result is sound and can be reported.
AFTERWARDS: tuple[Command, ...] = (
    ("db", "check", "OUT"),
    ("report", "OUT"),
    ("report", "OUT", "--format", "html", "-o", "OUT/page.html"),
)
REPORT: tuple[Command, ...] = (
    ("report", "IN", "--format", "csv", "-o", "OUT/r.csv"),
    ("report", "IN", "--format", "json", "-o", "OUT/r.json"),
    ("advise", "IN"),
    ("db", "check", "IN"),
    ("db", "info", "IN"),
)
MSPROF: tuple[Command, ...] = (
    *REPORT,
    ("report", "IN", "--by", "kernel"),
    ("export", "IN", "-o", "OUT/files", "--layout", "mindstudio"),
    ("export", "IN", "-o", "OUT/tables", "--layout", "parquet"),
    ("export", "IN", "-o", "OUT/t.json", "--layout", "chrome"),
    ("diff", "IN", "IN"),
)
# Exit codes that documentation gives to unusable input; see `unified_prof/errors.py`.
DOCUMENTED = {
    "convert": {0, 2, 6, 9},
    "db": {0, 1, 7, 8},
    "report": {0, 2, 7, 8},
    "advise": {0, 2, 7, 8},
    "export": {0, 2, 6, 7, 8},
    "diff": {0, 2, 7, 8},
    "cluster": {0, 2, 6, 7, 8},
}


@dataclass(frozen=True)
class Format:
    """A kind of input.

    Attributes:
        make: Writes a small input into a directory and returns its path.
        commands: Commands that read it.
        afterwards: Commands that must succeed if the first command does.
    """

    make: Callable[[Path], Path]
    commands: Sequence[Command] = CONVERT
    afterwards: Sequence[Command] = AFTERWARDS


def _kineto(folder: Path) -> Path:
    events = [
        operation("aten::mm", 1, 20, args={"Input Dims": [[2, 3], [3, 4]], "Sequence number": 3}),
        call(3, 4, 7),
        kernel(8, 9, 7),
        copy(20, 3, 8, "Memcpy HtoD (Pageable -> Device)", 4096),
        *({"ph": "M", "name": "thread_name", "pid": 100, "tid": 101, "args": {"name": "main"}},),
        *({"ph": ph, "id": 7, "pid": 100, "tid": 101, "ts": 3, "cat": "ac2g"} for ph in "sf"),
    ]
    properties = [{"id": 0, "name": "NVIDIA H100", "numSms": 132}]
    return write_trace(folder / "run.pt.trace.json", events, deviceProperties=properties)


def _chrome_trace(folder: Path) -> Path:
    events = [
        {"ph": "B", "name": "a", "pid": 1, "tid": 1, "ts": 1},
        {"ph": "E", "pid": 1, "tid": 1, "ts": 5},
        {"ph": "C", "name": "memory", "pid": 1, "ts": 2, "args": {"bytes": 7}},
        {
            "ph": "X",
            "name": "cudaLaunchKernel",
            "cat": "kernel",
            "pid": 1,
            "tid": 1,
            "ts": 2,
            "dur": 1,
        },
    ]
    path = folder / "trace.json"
    path.write_text(json.dumps(events))
    return path


def _compressed(folder: Path, suffix: str, compress: Callable[[bytes], bytes]) -> Path:
    path = folder / f"run.pt.trace.json.{suffix}"
    path.write_bytes(compress(_kineto(folder).read_bytes()))
    (folder / "run.pt.trace.json").unlink()
    return path


def _zstd(data: bytes) -> bytes:
    import zstandard

    return zstandard.compress(data)


def _zip(folder: Path) -> Path:
    trace = _kineto(folder)
    with zipfile.ZipFile(folder / "run.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(trace, "run.json")
        archive.write(trace, "rank1/run.json")
    trace.unlink()
    return folder / "run.zip"


def _tar(folder: Path) -> Path:
    inside = MAKERS["ascend_text"](folder / "a")
    with tarfile.open(folder / "run.tar.gz", "w:gz") as archive:
        archive.add(inside, inside.name)
    shutil.rmtree(folder / "a")
    return folder / "run.tar.gz"


def _nsys(folder: Path) -> Path:
    return write_export(folder / "run.sqlite", WHOLE)


def _parquet(folder: Path) -> Path:
    export = _nsys(folder)
    made = as_parquet(export, folder / "run_pqtdir")
    export.unlink()
    return made


def _rocm_json(folder: Path) -> Path:
    return write_json(folder / "results.json", as_json())


def _snapshot_json(folder: Path) -> Path:
    return write_snapshot(folder / "snapshot.json", small_snapshot())


_SETTINGS = """[project]
name = "x"

[tool.uprof.report]
top = 7
by = "kernel"
[tool.uprof.gate]
max-regress = "5%"
metric = ["total"]
[tool.uprof.devices."My GPU"]
bf16 = 989
memory = 3350
"""


def settings_file(folder: Path, text: str = _SETTINGS) -> Path:
    """Write a pyproject.toml, which commands read in the directory of the input."""
    path = folder / "pyproject.toml"
    path.write_text(text)
    return path


def _run_directory(folder: Path) -> Path:
    made = folder / "out"
    for rank in (0, 1):
        report = run_time_report(ensured(made / f"rank{rank}") / "run_time.sqlite")
        files = {"run_time": (str(report.relative_to(made)),)}
        note(made, RankEntry(rank, 2, (0, 1), "node0", "ended", exit_code=0, files=files))
    return made


def ensured(folder: Path) -> Path:
    """Create a directory, with those above it."""
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _traces(folder: Path) -> Path:
    return ranks.traces(folder / "ranks", 2)


def _rank_databases(folder: Path) -> Path:
    made = ranks.databases(folder / "ranks", 2)
    shutil.rmtree(folder / "ranks-traces")
    return made


def _summary(folder: Path) -> Path:
    return summaries.write_summary(folder / "run.cluster")


_CLUSTER_BUILD: tuple[Command, ...] = (
    ("cluster", "build", "IN", "-o", "OUT/out.cluster", "--jobs", "1"),
)
_CLUSTER_REPORT: tuple[Command, ...] = (("cluster", "report", "OUT/out.cluster"),)

FORMATS: dict[str, Format] = {kind: Format(make) for kind, make in MAKERS.items()} | {
    "kineto": Format(_kineto),
    "Chrome trace": Format(_chrome_trace),
    "trace, gzip": Format(partial(_compressed, suffix="gz", compress=gzip.compress)),
    "trace, xz": Format(partial(_compressed, suffix="xz", compress=lzma.compress)),
    "trace, bzip2": Format(partial(_compressed, suffix="bz2", compress=bz2.compress)),
    "trace, zstd": Format(partial(_compressed, suffix="zst", compress=_zstd)),
    "traces, zip": Format(_zip, (("convert", "IN", "-o", "OUT/converted"),), ()),
    "directory, tar.gz": Format(_tar, (("convert", "IN", "-o", "OUT/converted"),), ()),
    "nsys": Format(_nsys),
    "nsys Parquet": Format(_parquet),
    "rocprofv3 JSON": Format(_rocm_json),
    "snapshot, JSON": Format(_snapshot_json),
    "msprof database": Format(lambda folder: training_step(folder / "r.db"), MSPROF, ()),
    "Skyline time": Format(lambda folder: run_time_report(folder / "t.sqlite"), REPORT, ()),
    "Skyline memory": Format(lambda folder: memory_report(folder / "m.sqlite"), REPORT, ()),
    "rank traces": Format(_traces, _CLUSTER_BUILD, _CLUSTER_REPORT),
    "rank databases": Format(_rank_databases, _CLUSTER_BUILD, _CLUSTER_REPORT),
    "run directory": Format(_run_directory, (("report", "IN"),), ()),
    "cluster run": Format(_summary, (("cluster", "report", "IN"),), ()),
    "pyproject.toml": Format(settings_file, (("report", "../report.db"),), ()),
}
