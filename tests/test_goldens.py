"""Outputs of commands equal their stored text."""

from pathlib import Path

import pytest

from tests import goldens


@pytest.mark.parametrize("name", goldens.RECORDINGS)
def test_outputs_of_commands_equal_the_golden(name: str, tmp_path: Path) -> None:
    found = goldens.transcript(name, tmp_path)
    assert found == goldens.golden(name), "python -m tests.goldens rewrites the stored texts"
