from __future__ import annotations

import pytest

from unified_prof.errors import UsageError
from unified_prof.models import catalogue


def test_aliases_name_the_documented_and_the_newest_revision() -> None:
    assert catalogue.resolve("msprof", "documented") == "1.2.0_20251226"
    assert catalogue.resolve("msprof", "latest") == "1.2.0_20260716"
    assert catalogue.resolve("skyline-memory", "latest") == "1"


def test_unknown_names_are_refused_with_what_is_known() -> None:
    with pytest.raises(UsageError) as caught:
        catalogue.resolve("msprof", "9.9.9")
    assert "1.2.0_20260716" in str(caught.value.hint)
    with pytest.raises(UsageError):
        catalogue.resolve("nsight", "1")


@pytest.mark.parametrize("revision", catalogue.REVISIONS["msprof"])
def test_every_revision_says_its_own_schema_version(revision: str) -> None:
    expected = revision.partition("_")[0]
    assert catalogue.load("msprof", revision).schema_version == (
        None if expected == "pre" else expected
    )


def test_the_newest_msprof_revision_has_42_data_tables_9_enums_and_2_indexes() -> None:
    spec = catalogue.load("msprof", "latest")
    assert len(spec.enum_tables) == 9
    assert len(spec.tables) - len(spec.enum_tables) == 42
    assert [name for t in spec.tables.values() for name, _ in t.indexes] == [
        "TaskIndex",
        "CommunicationTaskIndex",
    ]
