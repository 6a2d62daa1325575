"""Writing of reports."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.sql import execute
from unified_prof.errors import OutputError, StoreError, UprofError, UsageError
from unified_prof.schema import catalogue
from unified_prof.schema.catalogue import ALWAYS_PRESENT, MSPROF, REVISIONS
from unified_prof.sqlite import writer
from unified_prof.sqlite.writer import ReportWriter

DOCUMENTED = catalogue.load(MSPROF, "documented")
LATEST = catalogue.load(MSPROF, "latest")


def tables(path: Path) -> list[str]:
    return [
        name for (name,) in execute(path, "SELECT name FROM sqlite_master WHERE type = 'table'")
    ]


def write(path: Path, batches: Mapping[str, Mapping[str, Any]], **options: Any) -> Path:
    with ReportWriter(path, **options) as report:
        for table, columns in batches.items():
            report.write(table, columns)
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "msprof.db"


@pytest.fixture(params=["pages", "statements"], autouse=True)
def write_path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run every test with rows as pages and as statements."""
    if request.param == "pages":
        monkeypatch.setattr(writer, "ROWS_WORTH_PAGES", 1)
    else:
        monkeypatch.setattr(writer, "can_be_pages", lambda _: False)


def test_report_appears_alone_when_the_block_ends(path: Path) -> None:
    with ReportWriter(path) as report:
        name = report.strings.intern("MatMul")
        report.write("COMPUTE_TASK_INFO", {"name": name, "globalTaskId": np.arange(2)})
        assert not path.exists()
    query = "SELECT value, globalTaskId FROM COMPUTE_TASK_INFO JOIN STRING_IDS ON id = name"
    assert execute(path, query) == [("MatMul", 0), ("MatMul", 1)]
    assert list(path.parent.iterdir()) == [path]


def test_empty_report_has_the_tables_that_msprof_always_writes(path: Path) -> None:
    write(path, {})
    assert set(tables(path)) == ALWAYS_PRESENT | set(DOCUMENTED.enum_tables)
    for enum in DOCUMENTED.enum_tables:
        assert tuple(execute(path, f"SELECT * FROM {enum}")) == DOCUMENTED.rows[enum]
    assert execute(path, "SELECT * FROM META_DATA") == [
        ("SCHEMA_VERSION", "1.2.0"),
        ("SCHEMA_VERSION_MAJOR", "1"),
        ("SCHEMA_VERSION_MINOR", "2"),
        ("SCHEMA_VERSION_MICRO", "0"),
        ("UPROF_SCHEMA_REVISION", "1.2.0_20251226"),
    ]


def test_string_ids_is_created_last_to_mark_a_complete_file(path: Path) -> None:
    with ReportWriter(path, empty_tables=LATEST.tables) as report:
        report.fact("tool", "test")
        report.anomaly("odd")
        report.write("PYTORCH_API", {"startNs": [1]})
    assert tables(path)[-1] == "STRING_IDS"


@pytest.mark.quick(cases=9)
@pytest.mark.parametrize("revision", REVISIONS[MSPROF])
def test_tables_have_the_declarations_of_their_revision(path: Path, revision: str) -> None:
    spec = catalogue.load(MSPROF, revision)
    write(path, {}, revision=revision, empty_tables=LATEST.tables.keys() | spec.tables.keys())
    declared = {table.name: table.create_sql for table in spec.tables.values()}
    assert (
        dict(execute(path, "SELECT name, sql FROM sqlite_master WHERE type = 'table'")) == declared
    )
    indexes = {name: sql for table in spec.tables.values() for name, sql in table.indexes}
    assert (
        dict(execute(path, "SELECT name, sql FROM sqlite_master WHERE type = 'index'")) == indexes
    )


@pytest.mark.slow
def test_no_value_is_stored_as_a_blob(path: Path) -> None:
    sizes = (1, 400, 1003)  # One row, one complete statement, statements and a rest.
    number = np.arange(sum(sizes), dtype=np.uint32) + 7
    with ReportWriter(path, revision="latest") as report:
        for table, spec in catalogue.newest_tables().items():
            if table == "STRING_IDS" or table in LATEST.rows:
                continue
            first = 0
            for size in sizes:
                batch = number[first : first + size]
                report.write(table, dict.fromkeys(spec.column_names, batch))
                first += size
    for table, spec in catalogue.newest_tables().items():
        if table == "STRING_IDS" or table in LATEST.rows:
            continue
        figures = ", ".join(
            f"min(typeof({name})), max(typeof({name})), count({name}), sum({name})"
            for name in spec.column_names
        )
        found = iter(execute(path, f"SELECT {figures} FROM {table}")[0])
        for column in spec.columns:
            text = column.type in {"TEXT", "VARCHAR"}
            kind = "text" if text else "real" if column.type in {"REAL", "DOUBLE"} else "integer"
            expected = [kind, kind, len(number), number.sum()]
            assert [next(found) for _ in expected] == expected, f"{table}.{column.name}"


def test_scalars_are_repeated_and_missing_columns_are_null(path: Path) -> None:
    write(path, {"HBM": {"deviceId": 3, "bandwidth": 0.5, "timestampNs": np.arange(401)}})
    assert set(execute(path, "SELECT deviceId, bandwidth, hbmId, type FROM HBM")) == {
        (3, 0.5, None, None)
    }


@pytest.mark.parametrize("count", [810, 4100])  # by statements of many rows and of one, as pages
def test_constant_columns_are_stored_in_their_places(path: Path, count: int) -> None:
    columns = {
        "startNs": np.arange(count),
        "endNs": np.full(count, 9),
        "deviceId": 1,
        "globalTaskId": np.arange(count) * 2,
        "taskType": [None] * count,
        "streamId": np.full(count, -5),
        "taskId": np.where(np.arange(count) == 777, 1, 0),
    }
    write(path, {"TASK": columns})
    query = f"SELECT * FROM TASK WHERE startNs IN (0, 777, {count - 1}) ORDER BY 1"
    assert execute(path, query) == [
        (0, 9, 1, None, 0, None, None, None, -5, 0, None),
        (777, 9, 1, None, 1554, None, None, None, -5, 1, None),
        (count - 1, 9, 1, None, 2 * count - 2, None, None, None, -5, 0, None),
    ]


def test_rows_of_constants_only_are_stored(path: Path) -> None:
    write(path, {"HBM": {"deviceId": np.zeros(4500, int), "hbmId": 2, "timestampNs": None}})
    assert execute(path, "SELECT *, count(*) FROM HBM GROUP BY deviceId, hbmId, timestampNs") == [
        (0, None, None, 2, None, 4500)
    ]


def test_unsigned_numbers_wrap(path: Path) -> None:
    write(path, {"COMMUNICATION_TASK_INFO": {"notifyId": np.array([2**64 - 1, 5], np.uint64)}})
    assert execute(path, "SELECT notifyId FROM COMMUNICATION_TASK_INFO") == [(-1,), (5,)]


numbers = st.none() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    batches=st.lists(
        st.lists(st.tuples(numbers, numbers, st.none() | st.text(max_size=4)), max_size=5),
        max_size=4,
    ),
    repeat=st.sampled_from([1, 150]),
)
def test_written_values_are_read_back(
    path: Path, batches: list[list[tuple[Any, ...]]], repeat: int
) -> None:
    expected = []
    with ReportWriter(path, overwrite=True) as report:
        for batch in batches:
            many = batch * repeat
            columns = list(zip(*many, strict=True)) or [(), (), ()]
            report.write("HBM", {"deviceId": columns[0], "bandwidth": columns[1]})
            report.write("HOST_INFO", {"hostName": columns[2]})
            expected += many
    assert execute(path, "SELECT hostName FROM HOST_INFO") == [(text,) for _, _, text in expected]
    if expected:
        found = execute(path, "SELECT deviceId, bandwidth FROM HBM")
        assert found == [(a, b) for a, b, _ in expected]


@pytest.mark.quick(cases=5)
@pytest.mark.parametrize("text", ["", "a\0b", "\N{SNOWMAN}", "'\"%?", "x" * 5_000_000])
def test_any_text_is_stored(path: Path, text: str) -> None:
    with ReportWriter(path) as report:
        assert report.strings.intern(text) == 0
        report.write("HOST_INFO", {"hostName": [text] * 2})
    assert execute(path, "SELECT * FROM STRING_IDS") == [(0, text)]
    assert execute(path, "SELECT hostName FROM HOST_INFO") == [(text,)] * 2


def test_facts_and_anomalies_are_rows_of_uprof_tables(path: Path) -> None:
    with ReportWriter(path) as report:
        report.fact("tool", "uprof")
        report.fact("command", ["python", "\N{SNOWMAN} \udcff"])
        report.fact("exit_code", 0)
        report.fact("driver", None)
        report.anomaly("skipped", 2, "first")
        report.anomaly("skipped", np.int64(3), "second")  # type: ignore[arg-type]
        report.anomaly("empty")
    assert execute(path, "SELECT * FROM UPROF_RUN") == [
        ("command", '["python", "\N{SNOWMAN} \\udcff"]'),
        ("driver", None),
        ("exit_code", "0"),
        ("tool", "uprof"),
    ]
    assert execute(path, "SELECT *, typeof(count) FROM UPROF_ANOMALIES") == [
        ("empty", 1, None, "integer"),
        ("skipped", 5, "first", "integer"),
    ]


def test_equal_input_gives_equal_bytes(tmp_path: Path) -> None:
    batches: dict[str, Any] = {
        "TASK": {"startNs": np.arange(500)},
        "HBM": {"bandwidth": [0.1, None]},
    }
    first, second = (write(tmp_path / name, batches) for name in ("a.db", "b.db"))
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize(
    ("table", "columns", "message"),
    [
        ("NO_SUCH", {"a": [1]}, "no table NO_SUCH"),
        ("TASK", {"startNs": [1], "start": [1]}, "(?m)table TASK has no column start$"),
        ("TASK", {"startNs": [1, 2], "endNs": [1]}, "different lengths: startNs 2, endNs 1"),
        ("TASK", {"taskType": ["AI_CORE"]}, "TASK.taskType is INTEGER, found text"),
        ("COMPUTE_TASK_INFO", {"globalTaskId": [1, None]}, "key of its table, found NULL"),
        ("COMPUTE_TASK_INFO", {"name": [1]}, "COMPUTE_TASK_INFO.globalTaskId is the key"),
        ("STRING_IDS", {"id": [1]}, "from the string pool"),
        ("TASK", {"startNs": [2**64]}, "column startNs for table TASK: .* 64 bits"),
    ],
)
def test_invalid_columns_are_refused_and_nothing_is_stored(
    path: Path, table: str, columns: dict[str, Any], message: str
) -> None:
    with ReportWriter(path) as report:
        report.write("TASK", {"startNs": [5]})
        with pytest.raises(UsageError, match=message):
            report.write(table, columns)
    assert execute(path, "SELECT startNs FROM TASK") == [(5,)]
    assert "COMPUTE_TASK_INFO" not in tables(path)


def test_empty_batches_create_no_table(path: Path) -> None:
    with ReportWriter(path) as report:
        assert report.write("TASK", {"startNs": [], "deviceId": 1}) == 0
        assert report.write("HBM", {}) == 0
    assert not {"TASK", "HBM"} & set(tables(path))


def test_writing_outside_the_block_is_an_error(path: Path) -> None:
    report = ReportWriter(path)
    with pytest.raises(UsageError, match="is not open"):
        report.write("TASK", {"startNs": [1]})
    with report:
        pass
    with pytest.raises(UsageError, match="is not open"):
        report.write("TASK", {"startNs": [1]})
    with pytest.raises(UsageError, match="has been written"), report:
        pass


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, OSError, SystemExit])
def test_exception_is_raised_and_leaves_no_file(path: Path, error: type[BaseException]) -> None:
    def work() -> None:
        with ReportWriter(path) as report:
            report.write("TASK", {"startNs": np.arange(1000)})
            raise error

    with pytest.raises(error):
        work()
    assert list(path.parent.iterdir()) == []


def test_duplicate_key_is_refused_although_the_error_is_caught(path: Path) -> None:
    keys = np.append(np.arange(5000), 7)

    def work() -> None:
        with ReportWriter(path) as report:
            with pytest.raises(StoreError, match=r"COMPUTE_TASK_INFO\.globalTaskId"):
                report.write("COMPUTE_TASK_INFO", {"globalTaskId": keys})
            report.write("TASK", {"startNs": [1]})

    with pytest.raises(StoreError, match=r"msprof\.db cannot be written: "):
        work()
    assert list(path.parent.iterdir()) == []


def test_duplicate_key_among_few_rows_is_refused_at_the_end(path: Path) -> None:
    with (
        pytest.raises(StoreError, match=r"cannot be written: .*COMPUTE_TASK_INFO\.globalTaskId"),
        ReportWriter(path) as report,
    ):
        report.write("COMPUTE_TASK_INFO", {"globalTaskId": [1, 1]})
    assert list(path.parent.iterdir()) == []


def test_existing_file_is_kept_without_overwrite(path: Path) -> None:
    path.write_text("existing")
    with pytest.raises(OutputError, match="already exists"), ReportWriter(path):
        pass
    assert path.read_text() == "existing"
    write(path, {}, overwrite=True)
    assert execute(path, "SELECT count(*) FROM STRING_IDS") == [(0,)]


def test_unknown_revision_is_refused_before_writing(path: Path) -> None:
    with pytest.raises(UsageError, match=r"no revision '9\.9\.9'"):
        ReportWriter(path, revision="9.9.9")
    assert list(path.parent.iterdir()) == []


def test_callback_runs_before_the_report_has_its_name(path: Path) -> None:
    seen: list[tuple[bool, int]] = []

    def check_report(unnamed: Path) -> None:
        rows = execute(unnamed, "SELECT count(*) FROM TASK")[0][0]
        seen.append((path.exists(), rows))

    with ReportWriter(path) as report:
        report.before_name(check_report)
        report.write("TASK", {"startNs": [1, 2]})
    assert (seen, path.exists()) == ([(False, 2)], True)


def test_failing_callback_leaves_no_report(path: Path) -> None:
    def fails(_: Path) -> None:
        raise UprofError("no")

    with pytest.raises(UprofError, match="no"), ReportWriter(path) as report:
        report.before_name(fails)
    assert list(path.parent.iterdir()) == []


def test_report_can_be_renamed_while_it_is_written(path: Path) -> None:
    taken = path.with_name("taken.db")
    taken.touch()
    with ReportWriter(path) as report:
        with pytest.raises(OutputError, match=r"taken\.db already exists"):
            report.rename("taken.db")
        report.rename("other.db")
    assert report.path == path.with_name("other.db")
    assert sorted(child.name for child in path.parent.iterdir()) == ["other.db", "taken.db"]
