"""The Python code of docs/tracking.md, so that tests run the published recipes."""

import re

from tests.conftest import ROOT

PAGE = ROOT / "docs" / "tracking.md"


def recipe(heading: str) -> str:
    """Return the code of the section with this heading."""
    section = PAGE.read_text(encoding="utf-8").partition(f"## {heading}\n")[2].partition("\n## ")[0]
    code = re.search(r"```python\n(.*?)```", section, re.DOTALL)
    assert code is not None, f"{PAGE} has no code under {heading}"
    return code[1]
