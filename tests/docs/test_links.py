"""Links of the documentation resolve within it, or are well-formed addresses."""

import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.conftest import ROOT
from tests.docs.pages import PAGES, anchor, anchors, prose, site

REPOSITORY = "https://github.com/unified-prof/uprof/"
GENERATED = {ROOT / "docs" / path for path in site()["GENERATED"]}
"""Pages that are generated when the site is built."""


def links(page: Path) -> list[str]:
    """Return the targets of a page's links and pictures."""
    text = prose(page)
    return re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r"<(https?://[^>\s]+)>", text)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_resolve(page: Path) -> None:
    for target in links(page):
        if re.match(r"[a-z]+:", target):
            parts = urlsplit(target)
            assert parts.scheme in ("https", "mailto"), target
            assert re.fullmatch(r"[\w.-]+\.[a-z]+", parts.netloc), target
            own = re.match(rf"{REPOSITORY}(?:blob|tree)/main/([^#]+)#?(.*)", target)
            if own is not None:
                assert (ROOT / own[1]).exists(), target
                assert not own[2] or own[2] in anchors(ROOT / own[1]), target
            continue
        name, _, at = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        if file in GENERATED:
            continue
        assert file.is_file(), target
        assert not at or at in anchors(file), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_images_have_alternative_text(page: Path) -> None:
    for words in re.findall(r"!\[([^\]]*)\]\(", prose(page)):
        assert len(words) > 20, words


def test_every_page_is_in_the_navigation() -> None:
    listed = re.findall(r"[\w./-]+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    written = {str(one.relative_to(ROOT / "docs")) for one in PAGES[1:]}
    assert set(listed) == written | set(site()["GENERATED"]), "add the page to `nav` in mkdocs.yml"
    assert len(listed) == len(set(listed))


def test_anchors_match_those_of_the_site() -> None:
    assert anchor("What is measured, and when") == "what-is-measured-and-when"
    assert anchor("Beside HolisticTraceAnalysis 0.5.0") == "beside-holistictraceanalysis-050"


def test_external_resources_of_a_page_are_detected() -> None:
    loads = site()["LOADS"]
    assert loads.search('<script src="https://cdn.example/x.js"></script>')
    assert loads.search('<link rel="stylesheet" href="//fonts.example/css">')
    assert not loads.search(
        '<a href="https://example.org">x</a><link rel=canonical href="https://x.y/">'
    )
