"""Extension tables hide no others, and those without a model are tables of uprof."""

from unified_prof.schema import catalogue
from unified_prof.schema.msprof import MODELS

TABLES = catalogue.extension_tables()


def test_tables_without_a_model_are_those_of_uprof() -> None:
    assert all(name.startswith("UPROF_") for name in TABLES.keys() - MODELS.keys())


def test_extension_tables_do_not_hide_tables_of_families() -> None:
    for family, revisions in catalogue.REVISIONS.items():
        for revision in revisions:
            assert not set(catalogue.load(family, revision).tables) & set(TABLES)
