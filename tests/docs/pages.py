"""The pages of the documentation for the tests."""

import re
import runpy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.conftest import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
"""Every page that is written by hand."""
NOT_RUN = re.compile(r"<!-- not run: (.+) -->")


def site() -> dict[str, Any]:
    """Return the functions of the site's hook."""
    return runpy.run_path(str(ROOT / "scripts" / "docs_site.py"))


@dataclass(frozen=True)
class Block:
    """One fenced block."""

    page: Path
    line: int
    language: str
    text: str
    not_run: str | None
    """Reason from the comment above the block, or None if it is run."""

    @property
    def where(self) -> str:
        """Return the block's name in failures."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> Iterator[Block]:
    """Yield the blocks of a page from top to bottom."""
    lines = page.read_text(encoding="utf-8").splitlines()
    start: int | None = None
    for number, line in enumerate(lines):
        if not line.lstrip().startswith("```"):
            continue
        if start is None:
            start = number
            continue
        why = NOT_RUN.fullmatch(lines[start - 1].strip()) if start else None
        language = lines[start].strip().removeprefix("```")
        text = "\n".join(lines[start + 1 : number]) + "\n"
        yield Block(page, start + 1, language, text, why and why[1])
        start = None
    assert start is None, f"{page}: a block is not closed"


def prose(page: Path) -> str:
    """Return a page without its blocks and without code in its lines."""
    text = re.sub(r"(?ms)^\s*```.*?^\s*```$", "", page.read_text(encoding="utf-8"))
    return re.sub(r"`[^`\n]*`", "", text)


def anchor(heading: str) -> str:
    """Return the anchor of a heading."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", text).strip())


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page."""
    text = re.sub(r"(?ms)^\s*```.*?^\s*```$", "", page.read_text(encoding="utf-8"))
    return {anchor(one) for one in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}
