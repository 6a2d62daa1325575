"""Rows that are alike in several columns have one number."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from unified_prof.analysis.read.operation_inputs import numbered
from unified_prof.store.integers import MISSING

VALUE = st.sampled_from([MISSING, -1, 0, 1, 7, 1 << 40])


@given(st.lists(st.tuples(VALUE, VALUE, st.booleans()), max_size=30))
def test_rows_have_one_number_exactly_where_they_are_alike(
    rows: list[tuple[int, int, bool]],
) -> None:
    columns = [np.array([row[place] for row in rows], np.int64) for place in range(3)]
    number = numbered(*columns).tolist()
    assert [number.index(one) for one in number] == [rows.index(row) for row in rows]
