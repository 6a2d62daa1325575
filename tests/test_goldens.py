"""Outputs of commands equal their stored text."""

from pathlib import Path

import pytest

from tests import goldens


@pytest.mark.parametrize("name", goldens.RECORDINGS)
def test_outputs_of_commands_equal_the_golden(name: str, tmp_path: Path) -> None:
    assert goldens.transcript(name, tmp_path) == goldens.golden(name)
