"""The JSON encoder writes what Python's own encoder writes."""

import json
import math
from enum import Enum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unified_prof.report.document import dump_json

PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    PLAIN | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=4), inner, max_size=4)
        | st.dictionaries(st.integers() | st.none() | st.booleans(), inner, max_size=2)
    ),
    max_leaves=20,
)


class Word(str, Enum):
    ONE = "one"


@pytest.mark.slow
@given(VALUES)
def test_json_equals_that_of_python(document: object) -> None:
    assert dump_json(document) == json.dumps(document, indent=2) + "\n"


@pytest.mark.parametrize(
    "document",
    [
        {},
        [],
        [[]],
        {"a": {}},
        {"a": [], "b": [{}]},
        [{"a": 1, "ä\n\u2028": Word.ONE}, [1, [2]], {"b": {"c": None}}],
        {1: [2], "x": {3: 4}},
        "text\n",
        10**30,
        1e16,
    ],
)
def test_json_of_edge_cases_equals_that_of_python(document: object) -> None:
    assert dump_json(document) == json.dumps(document, indent=2) + "\n"


@pytest.mark.parametrize("where", [math.nan, [math.inf], {"a": [1, {"b": -math.inf}]}])
def test_nonfinite_number_is_an_error(where: object) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        dump_json(where)
