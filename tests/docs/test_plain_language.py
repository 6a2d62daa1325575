"""Pages say what users need in plain English, and what is not published yet."""

import re
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.docs.pages import PAGES, prose

# Phrases that readers did not understand.
UNCLEAR = re.compile(
    r"noise does not allow to|recordings of others|\bwrong use\b|\bis told\b|no verdict any more"
    r"|did well|is nothing that|\bnobody\b|\banew\b|the costliest first|another profiler already",
    re.IGNORECASE,
)
# Pages of evidence and for developers; users need none of them.
FOR_DEVELOPERS = {"architecture", "decisions", "performance", "releasing", "validation"}
# A generated list to look terms up in, which has an entry for each heading of the output.
LOOKED_UP = {"glossary"}
# Words of the other pages together, and of each page that is a first step.
MAX_WORDS, MAX_FIRST_WORDS = 27_250, 320
INSTALLS = re.compile(r"pip install '?unified-prof(?!\[)|ghcr\.io/|uses: +unified-prof/|docker run")
# Extras are installable once the package is, from a checkout.
PUBLISHED_NOT_YET = re.compile(r"not on PyPI|not published|checkout", re.IGNORECASE)


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_page_has_no_unclear_phrase(page: Path) -> None:
    assert UNCLEAR.findall(prose(page)) == []


def words(page: Path) -> int:
    return len(page.read_text(encoding="utf-8").split())


def test_pages_for_users_stay_short() -> None:
    pages = [page for page in PAGES if page.stem not in FOR_DEVELOPERS | LOOKED_UP]
    assert sum(map(words, pages)) < MAX_WORDS


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "start").glob("*.md")), ids=name)
def test_first_page_is_short_and_names_the_next(page: Path) -> None:
    assert words(page) < MAX_FIRST_WORDS
    assert re.search(r"\]\(\.\./[\w/-]+\.md", page.read_text(encoding="utf-8"))


def test_pages_for_developers_are_not_among_those_for_users() -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    users, project = text.split("  - Project:\n")
    assert {f"{one}.md" for one in FOR_DEVELOPERS} == set(re.findall(r"\w+\.md", project))
    assert "index.md" in users


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_places_that_are_not_published_are_marked(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    if INSTALLS.search(text):
        assert PUBLISHED_NOT_YET.search(text)
