import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, select, text
from sqlalchemy.orm import Session, configure_mappers

from unified_prof.schema import catalogue
from unified_prof.schema.msprof import (
    MODELS,
    CannApi,
    CommunicationOp,
    CommunicationTask,
    ComputeTask,
    MsprofBase,
    PytorchApi,
    RankDevice,
    Task,
)
from unified_prof.schema.msprof.session import STRINGS

NEWEST = catalogue.load("msprof", "latest")


@pytest.fixture
def session() -> Iterator[Session]:
    engine = create_engine("sqlite://")
    MsprofBase.metadata.create_all(engine)
    with Session(engine) as session:
        run = session.connection().exec_driver_sql
        run("INSERT INTO STRING_IDS (id, value) VALUES (0, 'MatMul_1'),"
            " (1, 'MatMul'), (2, '\"8,8\"'),"
            " (3, 'KERNEL_AICORE'), (4, 'hcom_allReduce_'), (5, 'group'), (6, 'EVENT_RECORD'),"
            " (7, 'launch'), (8, 'Memcpy'), (9, 'aten::mm')")  # fmt: skip
        run("INSERT INTO ENUM_HCCL_DATA_TYPE (id, name) VALUES (4, 'FP32')")
        run("INSERT INTO ENUM_API_TYPE (id, name) VALUES (10000, 'node')")
        run("INSERT INTO TASK (startNs, endNs, deviceId, connectionId, globalTaskId, globalPid,"
            " taskType, contextId, streamId, taskId, modelId) VALUES"
            " (100, 150, 0, 7, 0, 42, 3, 4294967295, 1, 1, -1),"
            " (200, 260, 0, 8, 1, 42, 3, 4294967295, 1, 2, -1),"
            " (300, NULL, 0, -1, 2, 42, 6, 4294967295, 1, 3, -1)")  # fmt: skip
        run("INSERT INTO COMPUTE_TASK_INFO (name, globalTaskId, opType, inputShapes)"
            " VALUES (0, 0, 1, 2)")  # fmt: skip
        run("INSERT INTO COMMUNICATION_TASK_INFO (name, globalTaskId, opId) VALUES (8, 1, 0)")
        run("INSERT INTO COMMUNICATION_OP (opName, startNs, endNs, groupName, opId, dataType)"
            " VALUES (4, 200, 260, 5, 0, 4)")  # fmt: skip
        run(
            "INSERT INTO CANN_API (startNs, endNs, type, globalTid, connectionId, name)"
            " VALUES (90, 95, 10000, 42, 7, 7)"
        )
        run("INSERT INTO PYTORCH_API (startNs, endNs, name) VALUES"
            " ('1736410576395167660', '1736410576395182660', 9)")  # fmt: skip
        yield session
    engine.dispose()


def declared(db: sqlite3.Connection, table: str) -> list[tuple[str, str, int, int]]:
    rows = db.execute(f'PRAGMA table_info("{table}")')
    return [(name, kind, not_null, key) for _, name, kind, not_null, _, key in rows]


def test_models_declare_the_newest_revision_only() -> None:
    engine = create_engine("sqlite://")
    with engine.connect() as connection:
        MsprofBase.metadata.create_all(connection)
        db = connection.connection.driver_connection
        assert db is not None
        assert MODELS.keys() >= NEWEST.tables.keys()
        for name, spec in NEWEST.tables.items():
            wanted = [(c.name, c.type, c.not_null, c.primary_key) for c in spec.columns]
            assert declared(db, name) == wanted
        indexes = db.execute("SELECT name, sql FROM sqlite_master WHERE type = 'index'").fetchall()
        plain = {n: re.sub(r'["\s]', "", s) for n, s in indexes}
        wanted_indexes = [index for spec in NEWEST.tables.values() for index in spec.indexes]
        assert plain == {n: re.sub(r"\s", "", s) for n, s in wanted_indexes}
    engine.dispose()


def test_pytorch_tables_equal_those_of_torch_npu(shared: Path) -> None:
    engine = create_engine("sqlite://")
    with engine.connect() as connection, sqlite3.connect(":memory:") as theirs:
        MsprofBase.metadata.create_all(connection)
        ours = connection.connection.driver_connection
        assert ours is not None
        source = shared / "reference" / "msprof-schema" / "torch-npu-tables.sql"
        theirs.executescript(source.read_text())
        for table in MODELS.keys() - NEWEST.tables.keys():
            assert declared(ours, table) == declared(theirs, table)
    engine.dispose()
    theirs.close()


@pytest.mark.parametrize("model", MODELS.values())
def test_every_model_and_column_of_msprof_is_documented(model: type[MsprofBase]) -> None:
    configure_mappers()
    assert model.__doc__
    table = MsprofBase.metadata.tables[model.__tablename__]
    assert table.info["written"]
    for column in table.c:
        assert column.doc, column.name
        if refers := column.info.get("refers"):
            other, _, target = refers.partition(".")
            assert target in MsprofBase.metadata.tables[other].c
        if column.name.endswith("Ns"):
            assert column.info["unit"] == "ns since 1970", column.name


@pytest.mark.parametrize("model", MODELS.values())
def test_every_text_id_has_a_text_attribute(model: type[MsprofBase]) -> None:
    for attribute in model.__mapper__.column_attrs:
        refers = str(attribute.columns[0].info.get("refers"))
        if refers == STRINGS or refers.startswith("ENUM_"):
            assert attribute.key.endswith("_id")
            assert hasattr(model, attribute.key.removesuffix("_id")), attribute.key


def test_task_has_the_name_of_its_operation(session: Session) -> None:
    tasks = session.scalars(select(Task).order_by(Task.start_ns)).all()
    assert [task.name for task in tasks] == ["MatMul_1", "Memcpy", "EVENT_RECORD"]
    assert [task.duration_ns for task in tasks] == [50, 60, None]
    assert [task.task_type for task in tasks] == ["KERNEL_AICORE"] * 2 + ["EVENT_RECORD"]
    assert [api.name for api in tasks[0].apis] == ["launch"]


def test_relations_have_their_texts(session: Session) -> None:
    compute = session.scalars(select(ComputeTask)).one()
    assert (compute.op_type, compute.input_shapes, compute.attr_info) == ("MatMul", '"8,8"', None)
    assert compute.task is not None
    assert compute.task.duration_ns == 50
    op = session.scalars(select(CommunicationOp)).one()
    assert (op.name, op.group_name, op.data_type) == ("hcom_allReduce_", "group", "FP32")
    assert [step.name for step in op.tasks] == ["Memcpy"]
    step = session.scalars(select(CommunicationTask)).one()
    assert step.op is op
    assert step.task is not None
    assert step.task.communication is step
    api = session.scalars(select(CannApi)).one()
    assert (api.type, [task.global_task_id for task in api.tasks]) == ("node", [0])


def test_pytorch_times_stored_as_text_are_numbers(session: Session) -> None:
    api = session.scalars(select(PytorchApi)).one()
    assert (api.name, api.start_ns, api.duration_ns) == ("aten::mm", 1736410576395167660, 15_000)


def test_texts_and_durations_are_usable_in_queries(session: Session) -> None:
    query = select(ComputeTask.name, Task.duration_ns).join(Task, ComputeTask.task)
    assert session.execute(query.where(ComputeTask.op_type == "MatMul")).all() == [("MatMul_1", 50)]


def test_missing_text_is_none(session: Session) -> None:
    session.execute(text("UPDATE COMPUTE_TASK_INFO SET name = 999"))
    assert session.scalars(select(ComputeTask)).one().name is None


def test_no_relationship_changes_rows() -> None:
    mappers = [*MsprofBase.registry.mappers]
    relationships = [one for mapper in mappers for one in mapper.relationships]
    assert len(relationships) > 9
    assert all(one.viewonly for one in relationships)


def test_equal_rows_stay_separate(session: Session) -> None:
    session.execute(text("INSERT INTO RANK_DEVICE_MAP VALUES (-1, 0), (-1, 0)"))
    assert len(session.scalars(select(RankDevice)).all()) == 2


def test_times_are_exact_in_numeric_columns(session: Session) -> None:
    session.execute(text("INSERT INTO AICORE_FREQ VALUES (0, 1736410576395167661, 800, -1)"))
    times = MsprofBase.metadata.tables["AICORE_FREQ"].c.timestampNs
    found = session.execute(select(times).where(times == 1736410576395167661)).scalars().all()
    assert found == [1736410576395167661]


def test_enum_contents_depend_on_the_revision() -> None:
    def names(table: str, revision: str) -> dict[object, object]:
        tables = catalogue.load(catalogue.MSPROF, revision).rows
        return {row[0]: row[1] for row in tables.get(table, ())}

    assert names("ENUM_MODULE", "1.0.0_20241008")[74] == "MBUFF"
    assert names("ENUM_MODULE", "latest")[74] == "AMP"
    assert names("ENUM_HCCL_DATA_TYPE", "pre_20240328") == {}
