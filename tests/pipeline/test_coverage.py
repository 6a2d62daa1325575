"""UPROF_COVERAGE accounts for every byte, event and row of a recording."""

import gzip
import json
import pickle
import sqlite3
import tarfile
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.prof_generator import Recipe, generate
from tests.sql import execute
from unified_prof.base.columns import CoveredPart, coverage_text
from unified_prof.migrate.check import check
from unified_prof.pipeline.convert import convert


def covered(path: Path, recording: Path) -> dict[tuple[str, str], tuple[int, ...]]:
    """Convert a recording; return (total, decoded, skipped, without table) by kind and unit."""
    convert(recording, path / "x.db", force=True)
    rows = execute(path / "x.db", "SELECT * FROM UPROF_COVERAGE")
    assert all(total == sum(parts) for _, _, total, *parts in rows)
    return {(kind, unit): tuple(sizes) for kind, unit, *sizes in rows}


def total(found: dict[tuple[str, str], tuple[int, ...]], unit: str) -> int:
    return sum(sizes[0] for (_, of), sizes in found.items() if of == unit)


def event(**values: object) -> dict[str, object]:
    return {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 1, "ts": 1, **values}


def test_trace(tmp_path: Path) -> None:
    events = [
        *(event(ts=at, dur=1) for at in range(5)),
        event(ts=9),  # no duration
        event(ts=10, dur=-1),
        event(cat="tomorrow", ts=11, dur=1),  # stored as it is
        *({"ph": "C", "name": "queue", "pid": 1, "tid": 1, "ts": 12} for _ in range(3)),
        *({"ph": ph, "cat": "x", "name": "n", "pid": 1, "tid": 1, "ts": 13} for ph in "BEE"),
        {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}},
    ]
    text = json.dumps({"traceEvents": events})
    (tmp_path / "trace.json").write_text(text)
    found = covered(tmp_path, tmp_path / "trace.json")
    assert found["trace", "bytes"] == (len(text), len(text), 0, 0)
    assert found["operation", "events"] == (7, 5, 2, 0)
    assert found["unknown", "events"] == (5, 2, 0, 3)
    assert found["end", "events"] == (2, 1, 1, 0)
    assert total(found, "events") == len(events)


def test_truncated_trace(tmp_path: Path) -> None:
    whole = json.dumps({"traceEvents": [event(ts=at, dur=1) for at in range(9)]})
    text = whole[: whole.rindex("{") + 20]
    (tmp_path / "trace.json").write_text(text)
    size, decoded, skipped, _ = covered(tmp_path, tmp_path / "trace.json")["trace", "bytes"]
    assert size == len(text)
    assert 20 <= skipped <= 23  # with the comma and blank before it
    assert decoded == size - skipped


def test_snapshot(tmp_path: Path) -> None:
    known = {"action": "alloc", "addr": 1, "size": 8, "frames": [], "stream": 0, "time_us": 5}
    history = [known, {**known, "action": "tomorrow"}, {**known, "action": 3}]
    document = {"segments": [], "device_traces": [history]}
    (tmp_path / "s.pickle").write_bytes(pickle.dumps(document))
    assert covered(tmp_path, tmp_path / "s.pickle") == {("actions", "events"): (3, 1, 1, 1)}


def raw_bytes(path: Path) -> int:
    parts = [part for part in path.iterdir() if part.name.startswith(("host", "device_"))]
    return sum(f.stat().st_size for part in parts for f in part.rglob("*") if f.is_file())


def test_prof(tmp_path: Path) -> None:
    path = generate(tmp_path, Recipe(operators=3)).path
    before = covered(tmp_path, path)
    assert total(before, "bytes") == raw_bytes(path)
    assert all(sizes[0] == sizes[1] for sizes in before.values())
    data = path / "device_0" / "data"
    (data / "l2_cache.data.0.slice_0").write_bytes(b"x" * 1500)
    (data / "tomorrow.data.0.slice_0").write_bytes(b"x" * 77)
    (path / "host" / "notes.txt").write_bytes(b"x" * 5)
    with (data / "stars_soc.data.0.slice_0").open("ab") as file:
        file.write(b"\xff" * 64)  # a record without magic number
    found = covered(tmp_path, path)
    assert total(found, "bytes") == raw_bytes(path)
    assert found["device 0: l2_cache", "bytes"] == (1500, 0, 0, 1500)
    assert found["device 0: tomorrow", "bytes"] == (77, 0, 0, 77)
    assert found["host: other files", "bytes"] == (5, 0, 0, 5)
    assert found["device 0: stars_soc", "bytes"][2] == 64


def test_counters_that_the_platform_has_no_table_for_are_not_silent(tmp_path: Path) -> None:
    path = generate(tmp_path, Recipe(platform=1, operators=1)).path
    (path / "device_0" / "data" / "aicore.data.0.slice_0").write_bytes(b"\x5a" * 64)
    size, decoded, *_ = covered(tmp_path, path)["device 0: aicore", "bytes"]
    assert (size, decoded) == (64, 0)


def unpacked(folder: Path, archives: list[Path]) -> Iterator[Path]:
    for number, archive in enumerate(archives):
        with tarfile.open(archive) as tar:
            tar.extractall(folder / str(number), filter="data")
        yield next(iter((folder / str(number)).iterdir()))


def test_prof_goldens(tmp_path: Path, shared: Path) -> None:
    archives = sorted((shared / "goldens" / "prof").glob("*[05]*/*.tar.xz"))[::9]
    for path in unpacked(tmp_path, archives):
        assert total(covered(tmp_path, path), "bytes") == raw_bytes(path)


@pytest.mark.slow
def test_ascend_pt_goldens(tmp_path: Path, shared: Path) -> None:
    archives = sorted((shared / "goldens" / "ascend_pt").rglob("*.tar.xz"))
    folders = [p for p in unpacked(tmp_path, archives) if any(p.glob("FRAMEWORK/*"))][:4]
    assert folders
    for path in folders:
        found = covered(tmp_path, path)
        framework = sum(f.stat().st_size for f in path.glob("FRAMEWORK/*"))
        control = sum(f.stat().st_size for f in path.glob("profiler_*.json"))
        prof = sum(raw_bytes(part) for part in path.glob("PROF_*"))
        assert total(found, "bytes") == framework + control + prof


@pytest.mark.slow
def test_recorded_traces(tmp_path: Path, shared: Path) -> None:
    for name in ("nccl_parser_config__nccl_data", "mi300_vit", "torch_compile_triton"):
        path = shared / "samples" / "kineto" / f"{name}.json.gz"
        text = gzip.decompress(path.read_bytes())
        found = covered(tmp_path, path)
        assert found["trace", "bytes"][0] == len(text)
        events = json.loads(text)["traceEvents"]
        assert total(found, "events") == len(events)
        assert found["kernel", "events"][0] == Counter(e.get("cat") for e in events)["kernel"]


# Recorded by Nsight Systems for other questions than uprof answers.
NSYS_WITHOUT_TABLE = ("SCHED_EVENTS", "COMPOSITE_EVENTS", "SAMPLING_CALLCHAINS", "OSRT_CALLCHAINS")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["h100_2gpu_1s", "mock"])
def test_nsys_exports(tmp_path: Path, shared: Path, name: str) -> None:
    import lzma

    path = tmp_path / "r.sqlite"
    path.write_bytes(lzma.decompress((shared / f"samples/nsys/{name}.sqlite.xz").read_bytes()))
    with closing(sqlite3.connect(path)) as db:
        for table in NSYS_WITHOUT_TABLE:
            db.execute(f"DROP TABLE IF EXISTS {table}")
            db.execute(f"CREATE TABLE {table} (start INTEGER)")
            db.executemany(f"INSERT INTO {table} VALUES (?)", [(n,) for n in range(70)])
        db.commit()
        names = [row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type='table'")]
        rows = {name: db.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0] for name in names}
    found = covered(tmp_path, path)
    assert {kind: sizes[0] for (kind, unit), sizes in found.items() if unit == "rows"} == {
        name: count for name, count in rows.items() if count
    }
    assert {found[table, "rows"] for table in NSYS_WITHOUT_TABLE} == {(70, 0, 0, 70)}


def test_check_finds_parts_that_do_not_add_up(tmp_path: Path) -> None:
    path = generate(tmp_path, Recipe(operators=1)).path
    covered(tmp_path, path)
    with closing(sqlite3.connect(tmp_path / "x.db")) as db:
        db.execute("UPDATE UPROF_COVERAGE SET decoded = decoded - 1 WHERE kind LIKE '%api_event'")
        db.commit()
    found = [one for one in check(tmp_path / "x.db").findings if one.is_problem]
    assert [one.kind for one in found] == ["coverage"]


def test_text_names_the_largest_losses() -> None:
    parts = [CoveredPart(f"k{n}", "bytes", 1000, 999 - n, 1, n) for n in range(6)]
    assert coverage_text(parts) == (
        "99.6 % of 6,000 bytes; skipped: k0 (1 bytes), k1 (1 bytes), k2 (1 bytes) and 3 more kinds"
        "; without a table: k5 (5 bytes), k4 (4 bytes), k3 (3 bytes) and 2 more kinds"
    )
    assert coverage_text([CoveredPart("k", "rows", 10**6, 10**6 - 1, 1, 0)]).startswith("99.9 %")
