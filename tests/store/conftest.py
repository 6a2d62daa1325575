"""Tests of the store have small files, and mean the ways that big ones are read in."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from unified_prof.sqlite import integer_columns


@pytest.fixture(autouse=True, scope="package")
def files_count_as_big() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(integer_columns, "_SMALL_BYTES", -1)
        yield
