"""Tests of the store have small files, and mean the ways that big ones are read in."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from unified_prof.store import integers


@pytest.fixture(autouse=True, scope="package")
def files_count_as_big() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(integers, "_SMALL_BYTES", -1)
        yield
