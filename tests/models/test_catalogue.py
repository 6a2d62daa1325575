import pytest

from unified_prof.errors import UsageError
from unified_prof.schema import catalogue


def test_aliases_select_the_documented_and_the_newest_revision() -> None:
    assert catalogue.resolve("msprof", "documented") == "1.2.0_20251226"
    assert catalogue.resolve("msprof", "latest") == catalogue.REVISIONS["msprof"][-1]
    assert catalogue.resolve("skyline-memory", "latest") == "1"


def test_unknown_revisions_are_refused_with_a_hint() -> None:
    with pytest.raises(UsageError) as caught:
        catalogue.resolve("msprof", "9.9.9")
    assert catalogue.REVISIONS["msprof"][-1] in str(caught.value.hint)
    with pytest.raises(UsageError):
        catalogue.resolve("nsight", "1")


@pytest.mark.parametrize("revision", catalogue.REVISIONS["msprof"])
def test_every_revision_stores_its_schema_version(revision: str) -> None:
    assert catalogue.load("msprof", revision).schema_version == catalogue.version_of(revision)


def index_of(revision: str) -> int:
    return catalogue.REVISIONS["msprof"].index(revision)


@pytest.mark.parametrize("revision", catalogue.REVISIONS["msprof"])
def test_every_revision_keeps_the_tables_and_indexes_of_the_previous_one(revision: str) -> None:
    spec = catalogue.load("msprof", revision)
    number = index_of(revision)
    if number:
        before = catalogue.load("msprof", catalogue.REVISIONS["msprof"][number - 1])
        assert before.tables.keys() <= spec.tables.keys()
    assert all(name.startswith("ENUM_") for name in spec.enum_tables)
    assert spec.tables.keys() >= catalogue.ALWAYS_PRESENT or number < index_of("1.2.0_20250922")
    assert [name for t in spec.tables.values() for name, _ in t.indexes] == [
        "TaskIndex",
        "CommunicationTaskIndex",
    ]


@pytest.mark.parametrize("revision", catalogue.REVISIONS["msprof"])
def test_outline_equals_the_declarations_that_sqlite_reads(revision: str) -> None:
    found, spec = catalogue.outline(revision), catalogue.load("msprof", revision)
    assert found.columns == {name: table.column_names for name, table in spec.tables.items()}
    assert found.constants == {name: dict(spec.rows[name]) for name in spec.enum_tables}  # type: ignore[arg-type]
