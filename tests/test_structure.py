"""Size and wording of the package stay within the limits of pyproject.toml."""

from pathlib import Path

import pytest

from tests.processes import python
from tests.test_packaging import TOOLS

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def totals() -> dict[str, int]:
    code = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[1]); import structure;"
        "print(structure.totals(Path(sys.argv[2])))"
    )
    run = python("-c", code, str(ROOT / "scripts"), str(ROOT), check=True)
    found: dict[str, int] = eval(run.stdout)
    return found


@pytest.mark.parametrize("figure", TOOLS["structure"])
def test_structure_is_within_its_limits(figure: str, totals: dict[str, int]) -> None:
    """If this fails, shorten the code, or raise the limit in [tool.structure] and say why."""
    limit = TOOLS["structure"][figure]
    assert totals[figure] <= limit, f"{figure}: {totals[figure]:,}, at most {limit:,} allowed"


def test_modules_above_a_cycle_count_as_levels() -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import structure;"
        "cycle = {'a': {'b'}, 'b': {'a', 'low'}, 'low': set()};"
        "print(structure.level_count({**cycle, 'c': {'a'}, 'd': {'c', 'low'}}))"
    )
    assert python("-c", code, ROOT / "scripts", check=True).stdout == "4\n"


def test_language_check_passes() -> None:
    script = Path("scripts/check_language.py")
    run = python(script, cwd=ROOT)
    assert run.returncode == 0, run.stdout[-5000:]
