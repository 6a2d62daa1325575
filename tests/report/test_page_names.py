"""The page has a word for every breakdown that a report can give."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import get_args

from unified_prof.analysis.model import By


def test_every_breakdown_has_a_name_on_the_page() -> None:
    script = files("unified_prof.report").joinpath("page", "table.js").read_text(encoding="utf-8")
    for table in ("BY_NAMES", "DETAIL_LABELS"):
        (named,) = re.findall(rf"const {table} = \{{(.*)\}};", script)
        assert set(re.findall(r"(\w+): \"", named)) == set(get_args(By)), table
