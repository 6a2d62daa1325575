"""A rank's database as a partial, and partials as files."""

import pickle
import sqlite3
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from tests.analysis.builders import Device
from tests.cluster import simulated_run
from tests.cluster.simulated_run import Plan, partial_of, simulate, write_database
from tests.sql import execute
from unified_prof.cluster import rank_map, summary_rows
from unified_prof.cluster import rank_partial as partials
from unified_prof.cluster.matching import match_collectives
from unified_prof.cluster.rank_map import read_partials
from unified_prof.cluster.rank_partial import PARTIAL_PARTS, Partial
from unified_prof.cluster.summary import summarize_run
from unified_prof.errors import StoreError
from unified_prof.schema import catalogue
from unified_prof.schema.catalogue import MSPROF

PLAN = Plan(steps=2, setup_ns=500_000)


def assert_equal(one: Partial, other: Partial) -> None:
    for part, columns in PARTIAL_PARTS.items():
        for name in columns:
            np.testing.assert_array_equal(
                getattr(one, part)[name], getattr(other, part)[name], f"{part}.{name}"
            )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@pytest.mark.parametrize("rank", [0, 9])
def test_partial_of_a_database_equals_the_simulated_partial(folder: Path, rank: int) -> None:
    run = simulate(PLAN)
    (found,) = read_partials(write_database(run, rank, folder / f"{rank}.db"))
    expected = partial_of(run, rank)
    order = {group.ranks: at for at, group in enumerate(expected.groups)}
    renamed = np.array([order[group.ranks] for group in found.groups])
    kinds = [expected.kinds.index(kind) for kind in found.kinds]
    names = [expected.names.index(name) for name in found.names]
    communication = dict(found.communication)
    communication["group"] = renamed[communication["group"]]
    communication["kind"] = np.array(kinds)[communication["kind"]]
    kernels = dict(found.kernels)
    kernels["name"] = np.array(names)[kernels["name"]]
    inside = np.lexsort((kernels["name"], kernels["step"]))
    kernels = {name: values[inside] for name, values in kernels.items()}
    sorted_like = replace(found, communication=communication, kernels=kernels, links=expected.links)
    assert_equal(sorted_like, expected)
    assert found.facts.rank == rank
    assert (found.facts.host, found.facts.world_size) == (f"host{rank // 4}", 16)
    assert {group.kind for group in found.groups} == {"tp", "dp", "pp", "world"}


def test_links_are_transfers_between_global_ranks(folder: Path) -> None:
    (found,) = read_partials(write_database(simulate(PLAN), 9, folder / "9.db"))
    pairs = list(zip(found.links["src"].tolist(), found.links["dst"].tolist(), strict=True))
    # To the next rank in each of its groups: tp (8, 9), dp (9, 11, 13, 15), all 16.
    assert pairs == [(9, 8), (9, 10), (9, 11)]


@pytest.mark.parametrize("table", ["AICORE_FREQ", "UPROF_GPU_METRICS"])
def test_clock_is_the_mean_while_kernels_run(tmp_path: Path, table: str) -> None:
    run = simulate(PLAN)
    file = write_database(run, 1, tmp_path / "1.db")
    kernels = [(a + b) // 2 for a, b, _ in run.kernels[1]]
    change = simulated_run.START + run.clock[0] + kernels[len(kernels) // 2]
    columns = "timestampNs INTEGER, deviceId INTEGER, name INTEGER, value REAL, freq INTEGER"
    execute(file, f"CREATE TABLE {table} ({columns})")
    if table == "UPROF_GPU_METRICS":  # in Hz, with other counters
        execute(file, "INSERT INTO STRING_IDS VALUES (9001, 'GPC Clock Frequency [MHz]')")
        execute(file, "INSERT INTO STRING_IDS VALUES (9002, 'SMs Active [%]')")
        insert = f"INSERT INTO {table} (timestampNs, deviceId, name, value) VALUES (?, ?, ?, ?)"
        execute(file, insert, change - 1, 1, 9002, 5)
        execute(file, insert, 1, 1, 9001, 1.8e9)
        execute(file, insert, change, 1, 9001, 1.2e9)
    else:
        insert = f"INSERT INTO {table} (timestampNs, deviceId, freq) VALUES (?, 1, ?)"
        execute(file, insert, change, 1200)
        execute(file, insert, 1, 1800)
    total = sum(b - a for a, b, _ in run.kernels[1])
    low = sum(b - a for a, b, _ in run.kernels[1] if (a + b) // 2 >= kernels[len(kernels) // 2])
    (found,) = read_partials(file)
    assert found.facts.clock_mhz == pytest.approx(1800 - 600 * low / total, abs=0.1)


@pytest.mark.parametrize("rank", [0, 9])
def test_partial_is_unchanged_after_writing_and_reading(rank: int) -> None:
    pytest.importorskip("pyarrow")
    one = partial_of(simulate(PLAN), rank)
    data = partials.partial_to_parquet(one)
    back = partials.partial_from_parquet(data, "it")
    assert_equal(one, back)
    assert asdict(back.facts) == asdict(one.facts)
    assert (back.groups, back.kinds, back.names) == (one.groups, one.kinds, one.names)
    with pytest.raises(StoreError, match="it is not a partial"):
        partials.partial_from_parquet(data[: len(data) // 2], "it")


def test_partial_is_unchanged_after_pickling() -> None:
    one = replace(partial_of(simulate(PLAN), 9), until=1)
    back = pickle.loads(pickle.dumps(one))
    assert_equal(one, back)
    assert asdict(back.facts) == asdict(one.facts)
    texts = ("groups", "kinds", "names", "modules", "until")
    assert [getattr(back, name) for name in texts] == [getattr(one, name) for name in texts]
    assert all(
        getattr(back, part)[name].dtype == np.int64
        for part, columns in PARTIAL_PARTS.items()
        for name in columns
    )


def test_communication_is_a_row_group_of_its_own_in_large_files() -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    arrow = pytest.importorskip("pyarrow")
    one = partial_of(simulate(PLAN), 9)
    times = -(-5_000 // len(one.communication["start"]))
    many = replace(
        one,
        communication={name: np.tile(values, times) for name, values in one.communication.items()},
        marks={name: np.tile(values, times) for name, values in one.marks.items()},
    )
    data = partials.partial_to_parquet(many)
    file = parquet.ParquetFile(arrow.BufferReader(data))
    count = len(many.communication["start"])
    assert file.metadata.num_row_groups > 1
    assert file.metadata.row_group(0).num_rows == count
    assert_equal(many, partials.partial_from_parquet(data, "it"))
    for found in (data, with_one_row_group(data)):
        columns, kinds = partials.read_communication(found, "it")
        assert kinds == many.kinds
        for name in PARTIAL_PARTS["communication"]:
            np.testing.assert_array_equal(columns[name], many.communication[name], name)


def with_one_row_group(data: bytes) -> bytes:
    """Return the file as older versions of uprof wrote it."""
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    sink = arrow.BufferOutputStream()
    parquet.write_table(parquet.read_table(arrow.BufferReader(data)), sink, compression="zstd")
    return bytes(sink.getvalue())


def test_partial_of_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow")
    data = partials.partial_to_parquet(partial_of(simulate(PLAN), 0))
    monkeypatch.setattr(partials, "PARTIAL_VERSION", 99)
    with pytest.raises(StoreError, match="of version 4, expected 99"):
        partials.partial_from_parquet(data, "it")


def test_partial_with_steps_of_the_host_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow")
    older = partial_of(simulate(PLAN), 0)
    with monkeypatch.context() as change:
        change.setattr(partials, "PARTIAL_VERSION", 3)
        data = partials.partial_to_parquet(older)
    np.testing.assert_array_equal(
        partials.partial_from_parquet(data, "it").steps["end"], older.steps["end"]
    )


def test_unknown_rank_is_refused_unless_groups_option_or_path_give_it(folder: Path) -> None:
    path = write_database(simulate(PLAN), 3, folder / "whose.db")
    with closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE RANK_DEVICE_MAP SET rankId = -1")
        db.commit()
    assert read_partials(path)[0].facts.rank == 3  # from its place in its groups
    with closing(sqlite3.connect(path)) as db:
        db.execute("DELETE FROM META_DATA WHERE name = 'parallel_group_info'")
        db.commit()
    with pytest.raises(StoreError, match=r"cannot determine the rank"):
        read_partials(path)
    assert read_partials(path, 7)[0].facts.rank == 7
    named = folder / "rank5" / "it.db"
    named.parent.mkdir()
    named.write_bytes(path.read_bytes())
    assert read_partials(named)[0].facts.rank == 5


def test_database_of_a_host_has_a_partial_per_rank(folder: Path) -> None:
    run = simulate(replace(PLAN, tp=1, dp=2, pp=1))
    path = write_database(run, 0, folder / "two.db")
    with closing(sqlite3.connect(path)) as db:
        db.execute("INSERT INTO RANK_DEVICE_MAP VALUES (1, 1)")
        for table in ("TASK", "COMMUNICATION_OP"):
            names = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
            values = ["1" if name == "deviceId" else name for name in names]
            numbered = [
                f"{name} + 100000" if name in ("globalTaskId", "opId") else value
                for name, value in zip(names, values, strict=True)
            ]
            db.execute(f"INSERT INTO {table} SELECT {', '.join(numbered)} FROM {table}")
        db.execute(
            "INSERT INTO COMPUTE_TASK_INFO (globalTaskId, name, opType)"
            " SELECT globalTaskId + 100000, name, opType FROM COMPUTE_TASK_INFO"
        )
        db.commit()
    ranks = read_partials(path)
    assert [(one.facts.rank, one.facts.device_id) for one in ranks] == [(0, 0), (1, 1)]
    assert ranks[0].kernels["total"].sum() == ranks[1].kernels["total"].sum() > 0
    assert len(ranks[0].communication["start"]) == len(ranks[1].communication["start"])


def test_small_and_large_databases_are_alike(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_database(simulate(PLAN), 6, folder / "6.db")
    (small,) = read_partials(path)
    monkeypatch.setattr("unified_prof.sqlite.integer_columns._SMALL_BYTES", -1)
    (big,) = read_partials(path)
    assert_equal(small, big)
    assert (small.facts, small.groups, small.names) == (big.facts, big.groups, big.names)


def test_peers_of_gpu_transfers_are_places_or_global_ranks_in_old_files(folder: Path) -> None:
    path = write_database(simulate(PLAN), 0, folder / "gpu.db")
    expected = read_partials(path)[0].communication["peer"].tolist()
    assert set(expected) == {-1, 8}
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE UPROF_RUN (name VARCHAR PRIMARY KEY, value VARCHAR)")
        db.execute("INSERT INTO UPROF_RUN VALUES ('device_kind', 'gpu')")
        db.commit()
    assert read_partials(path)[0].communication["peer"].tolist() == expected
    with closing(sqlite3.connect(path)) as db:  # an import of an older uprof
        db.execute(
            "UPDATE COMMUNICATION_TASK_INFO SET srcRank = 4294967295, dstRank = 8"
            " WHERE name IN (SELECT id FROM STRING_IDS WHERE value LIKE 'hcom_send_%')"
        )
        db.commit()
    assert read_partials(path)[0].communication["peer"].tolist() == expected


def test_rdma_moves_data_until_its_operation_ends(folder: Path) -> None:
    """Its task only posts the transfer."""
    path = write_database(simulate(PLAN), 0, folder / "rdma.db")
    posted = read_partials(path)[0]
    with closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE TASK SET endNs = startNs + 1 WHERE globalTaskId IN"
                   " (SELECT globalTaskId FROM COMMUNICATION_TASK_INFO)")  # fmt: skip
        db.commit()
        assert set(read_partials(path)[0].communication["move"].tolist()) == {1}
        db.execute("UPDATE COMMUNICATION_TASK_INFO SET transportType = 1")
        db.commit()
    found = read_partials(path)[0]
    assert found.communication["move"].tolist() == posted.communication["move"].tolist()
    assert len(posted.links["src"])
    assert not len(found.links["src"])


def test_partial_without_rows_is_unchanged_after_writing_and_reading() -> None:
    pytest.importorskip("pyarrow")
    one = partial_of(simulate(PLAN), 0)
    bare = replace(
        one,
        communication=partials.empty_columns("communication"),
        marks=partials.empty_columns("marks"),
        steps=partials.empty_columns("steps"),
        kernels=partials.empty_columns("kernels"),
        links=partials.empty_columns("links"),
    )
    data = partials.partial_to_parquet(bare)
    assert_equal(bare, partials.partial_from_parquet(data, "it"))
    assert len(partials.read_communication(data, "it")[0]["start"]) == 0


def test_kernels_have_the_module_of_their_launch(tmp_path: Path) -> None:
    with Device(tmp_path / "rank0.db") as device:
        linear = ("nn.Module: Linear_0", "/w/net.py(4): forward", "nn.Module: Net_0")
        device.chain(1, "<built-in linear>", *linear, "/w/train.py(9): step")
        device.chain(3, "/w/train.py(11): step")
        device.call(0, 100, "aten::linear", chain=1, sequence=5)
        device.call(10, 90, "aten::addmm", chain=1, sequence=5, launches=1)
        device.call(200, 300, "aten::mse_loss", chain=3, sequence=7, launches=3)
        for number in (1, 2, 3):
            device.task(1000 * number, 1000 * number + 10, connection=number, kernel=("k", "K"))
    (one,) = read_partials(tmp_path / "rank0.db")
    found = {
        one.modules[module]: (n, total)
        for module, n, total in zip(
            *(one.kernels[name].tolist() for name in ("module", "n", "total")), strict=True
        )
    }
    assert found == {"": (2, 20), "Net_0.Linear_0": (1, 10)}
    rows = summarize_run([one]).tables["OPERATION_RANK"]
    assert rows == [(0, "K", "", 2, 20, 10, 10), (0, "K", "Net_0.Linear_0", 1, 10, 10, 10)]


def test_host_ranges_are_not_read_if_no_module_was_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_database(simulate(Plan()), 3, tmp_path / "rank3.db")
    monkeypatch.setattr(rank_map, "Framework", None)
    (one,) = read_partials(file)
    assert one.modules == ("",)


def test_longest_modules_are_listed_and_every_kernel_is_counted() -> None:
    one = partial_of(simulate(Plan()), 0)
    count = 1000
    many = replace(
        one,
        names=("A", "B"),
        modules=("", *(f"Net.Layer_{at}" for at in range(count))),
        kernels={
            "step": np.zeros(count, np.int64),
            "name": np.arange(count) % 2,
            "module": np.arange(count) + 1,
            "n": np.ones(count, np.int64),
            **{name: np.arange(count) + 1 for name in ("total", "min", "max")},
        },
    )
    rows = summary_rows.operation_rows(match_collectives([many]), [0])
    assert len(rows) == 256 + 2
    assert sum(row[3] for row in rows) == count
    longest = max((row for row in rows if row[2]), key=lambda row: row[4])
    assert longest[:5] == (0, "B", "Net.Layer_999", 1, 1000)


def test_loader_recorded_as_user_annotation_is_read_like_an_operator(folder: Path) -> None:
    run = simulate(replace(PLAN, late={0: 2_000_000}))
    path = write_database(run, 0, folder / "loader.db")
    (as_operator,) = read_partials(path)
    with closing(sqlite3.connect(path)) as db, db:
        db.executescript(catalogue.load(MSPROF, "latest").tables["MSTX_EVENTS"].create_sql)
        db.execute(
            "INSERT INTO MSTX_EVENTS (startNs, endNs, message)"
            " SELECT CAST(startNs AS INTEGER), CAST(endNs AS INTEGER), name FROM PYTORCH_API"
            " WHERE name IN (SELECT id FROM STRING_IDS WHERE value LIKE '%DataLoader%')"
        )
        db.execute(
            "DELETE FROM PYTORCH_API"
            " WHERE name IN (SELECT id FROM STRING_IDS WHERE value LIKE '%DataLoader%')"
        )
    (as_mark,) = read_partials(path)
    assert as_mark.facts.loader_recorded
    assert_equal(as_mark, as_operator)


def test_truncated_recording_is_refused(folder: Path) -> None:
    path = write_database(simulate(PLAN), 3, folder / "cut.db")
    execute(path, "CREATE TABLE UPROF_ANOMALIES (name, count, detail)")
    execute(path, "INSERT INTO UPROF_ANOMALIES VALUES ('cut_off', 1, 'after 100 events')")
    with pytest.raises(StoreError, match=r"the recording is truncated \(after 100 events\)"):
        read_partials(path)


def test_skipped_data_of_a_rank_is_reported_with_its_reasons(folder: Path) -> None:
    path = write_database(simulate(PLAN), 0, folder / "skipped.db")
    with closing(sqlite3.connect(path)) as db:
        db.executescript("""
            CREATE TABLE UPROF_COVERAGE (kind TEXT, unit TEXT, total INTEGER, decoded INTEGER,
                                         skipped INTEGER, without_table INTEGER);
            INSERT INTO UPROF_COVERAGE VALUES ('device 0: hwts', 'bytes', 640, 576, 64, 0),
                                              ('host: dbg', 'bytes', 9, 0, 0, 9);
            CREATE TABLE IF NOT EXISTS UPROF_ANOMALIES (name TEXT, count INTEGER, detail TEXT);
            INSERT INTO UPROF_ANOMALIES VALUES ('damaged_record', 1200, 'type 3');
        """)
    (found,) = read_partials(path)
    skipped = "decoded 90 % of 640 bytes; skipped: device 0: hwts (64 bytes)"
    assert found.facts.notes[-2:] == (skipped, "damaged_record (1,200)")
    with closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE UPROF_COVERAGE SET skipped = 0")
        db.commit()
    (found,) = read_partials(path)
    assert not [note for note in found.facts.notes if "skipped" in note]
