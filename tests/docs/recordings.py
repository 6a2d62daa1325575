"""Recordings and files for the documentation's examples, by the names that the pages use."""

import lzma
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.cluster import ranks
from tests.conftest import ROOT
from tests.decoders.kineto import builders
from tests.pipeline.test_sources import MAKERS
from unified_prof.pipeline import cluster
from unified_prof.pipeline.convert import convert

KINDS = {
    "train.py": "script",
    "transformer.py": "script",
    "model.py": "script",
    "mypackage": "package",
    "out": "report",
    "RUN": "report",
    "NEW": "report",
    "base": "report",
    "new": "report",
    "report-base": "report",
    "report-new": "report",
    "trace.json.gz": "trace",
    "rank*/trace.json.gz": "rank-traces",
    "run.sqlite.xz": "packed-export",
    "trace.db": "timeline",
    "other.db": "timeline",
    "timeline.db": "timeline",
    "h100.db": "timeline",
    "mi300.db": "timeline",
    "cuda.db": "timeline",
    "npu.db": "timeline",
    "msprof_20260101000000.db": "timeline",
    "msprof_20260520101500.db": "timeline",
    "PROF_000001_20260101000000000_00004242ABCDEFGH": "prof",
    "host_4242_20260101000000000_ascend_pt": "ascend-pt",
}
"""Name in a page -> its kind, unless `<!-- with: NAME=KIND -->` above a block differs."""


def provide(name: str, kind: str, store: Path) -> None:
    """Put the recording of a kind at `name` in the current directory; `store` caches recordings."""
    place = Path(name)
    if place.is_dir():
        shutil.rmtree(place)
    else:
        place.unlink(missing_ok=True)
    if kind == "nothing":
        return
    kept = store / kind
    if not kept.exists():
        store.mkdir(parents=True, exist_ok=True)
        _BUILDERS[kind](kept)
    if "*" in name:
        shutil.copytree(kept, Path(), dirs_exist_ok=True)
    elif kept.is_dir():
        shutil.copytree(kept, place)
    else:
        shutil.copyfile(kept, place)


def timeline_trace(path: Path) -> Path:
    """Write a trace of three steps with operations, shapes, kernels and a synchronization."""
    events = []
    for step in range(3):
        begin = 1_000_000.0 + 20_000 * step
        events.append(builders.complete("user_annotation", f"ProfilerStep#{step}", begin, 18_000))
        for number in range(4):
            at, correlation = begin + 100 + 1500 * number, 100 * step + number + 1
            shapes = {"Input Dims": [[512, 512], [512, 512]], "Input type": ["float", "float"]}
            events += [
                builders.operation("aten::linear", at - 5, 70, args=shapes),
                builders.operation("aten::mm", at, 60, args=shapes),
                builders.call(at + 10, 10, correlation),
                builders.kernel(at + 40, 1000, correlation),
            ]
        wait = builders.complete("cuda_runtime", "cudaStreamSynchronize", begin + 6_000, 500)
        events.append(wait | {"args": {"correlation": 100 * step + 90}})
    about = {"deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}]}
    return builders.write(path, events, **about)


def _script(path: Path) -> None:
    shutil.copyfile(ROOT / "examples" / "train.py", path)


def _report(path: Path) -> None:
    script = path.with_name("train.py")
    _script(script)
    subprocess.run(
        [sys.executable, "-m", "unified_prof", "run", "-q", "-o", path, "--backend", "cpu", script],
        check=True,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def _package(path: Path) -> None:
    path.mkdir()
    (path / "__init__.py").touch()
    _script(path / "train.py")


def _checkout(path: Path) -> None:
    path.mkdir()
    _script(path / "train.py")


def _builder(source: str) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        MAKERS[source](path.with_name(f"{path.name}-source")).rename(path)

    return make


def _timeline(path: Path) -> None:
    convert(timeline_trace(path.with_name("timeline.json")), path.with_suffix(".db"))
    path.with_suffix(".db").rename(path)


def _rank_traces(path: Path) -> None:
    for rank in range(2):
        ranks.trace(path / f"rank{rank}" / "trace.json.gz", rank, 2)


def _packed_export(path: Path) -> None:
    source = MAKERS["nsys"](path.with_name("nsys-source"))
    path.write_bytes(lzma.compress(source.read_bytes()))


def _recordings(path: Path) -> None:
    for number in (1, 2):
        source = MAKERS["prof"](path.with_name(f"prof-source-{number}"))
        shutil.copytree(source, path / f"PROF_00000{number}_20260101000000000_00004242ABCDEFGH")


def _old_database(path: Path) -> None:
    from tests.cli.test_report import uprof

    done = uprof("db", "create", path.with_suffix(".db"), "--schema", "1.0.0_20241112")
    assert done.returncode == 0, done.stderr
    path.with_suffix(".db").rename(path)


def _cluster(path: Path) -> None:
    databases = path.with_name("cluster-ranks")
    ranks.databases(databases)
    cluster.build([str(databases)], str(path))


_BUILDERS: dict[str, Callable[[Path], object]] = {
    "script": _script,
    "package": _package,
    "checkout": _checkout,
    "report": _report,
    "trace": timeline_trace,
    "timeline": _timeline,
    "rank-traces": _rank_traces,
    "packed-export": _packed_export,
    "prof": _builder("prof"),
    "ascend-pt": _builder("ascend_pt"),
    "recordings": _recordings,
    "old-database": _old_database,
    "ranks": ranks.databases,
    "cluster": _cluster,
}
