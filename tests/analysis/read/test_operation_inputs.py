"""Inputs of operations are read in any order, and equal rows get one number."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.analysis.builders import Device
from unified_prof.arrays.grouping import MISSING
from unified_prof.explain.api import open_reports
from unified_prof.explain.msprof import MsprofAnalysis
from unified_prof.recording import operators
from unified_prof.recording.operators import input_ids, numbered

VALUE = st.sampled_from([MISSING, -1, 0, 1, 7, 1 << 40])


@given(st.lists(st.tuples(VALUE, VALUE, st.booleans()), max_size=30))
def test_rows_have_one_number_only_if_they_are_equal(rows: list[tuple[int, int, bool]]) -> None:
    columns = [np.array([row[place] for row in rows], np.int64) for place in range(3)]
    number = numbered(*columns).tolist()
    assert [number.index(one) for one in number] == [rows.index(row) for row in rows]


@pytest.mark.parametrize("order", ["rising", "falling", "none"])
def test_operation_inputs_are_found_for_any_row_order(
    order: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moments = np.arange(200) // 3 * 10
    if order == "falling":
        moments = moments[::-1]
    elif order == "none":
        moments = np.random.default_rng(1).permutation(moments)
    with Device(tmp_path / "msprof_1.db") as db:
        for number, at in enumerate(moments.tolist()):
            inputs = (f"{number},2", "float") if number % 5 else None
            db.call(at, at + 40, f"aten::op{number % 4}", thread=number % 2 + 1, inputs=inputs)
        db.task(0, 9, kernel=("a", "b"))
    with open_reports(tmp_path / "msprof_1.db") as opened:
        (analysis,) = opened.analyses
        assert isinstance(analysis, MsprofAnalysis)
        recording = analysis.recording
        assert recording.framework is not None
        ranges = np.arange(len(recording.framework))
        texts = []
        for batch in (1 << 17, 7):
            monkeypatch.setattr(operators, "_AT_A_TIME", batch)
            monkeypatch.setattr(operators, "_MANY", 1)
            found = input_ids(recording.source, recording.framework, ranges)
            texts.append([recording.strings.texts(found[one].tolist()) for one in sorted(found)])
        assert texts[0] == texts[1]
        assert len(set(texts[0][0])) > 100
