"""Fixtures for tests of the store."""

from collections.abc import Iterator

import pytest

from unified_prof.sqlite import integer_columns


@pytest.fixture(autouse=True, scope="package")
def treat_files_as_large() -> Iterator[None]:
    """Read small files in the way of large ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(integer_columns, "_SMALL_BYTES", -1)
        yield
