"""Every error has a name that its message shows and that docs/troubleshooting.md explains."""

import ast
import pickle
import re
import traceback
from functools import cache
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.docs.pages import site
from tests.source_trees import nodes
from unified_prof import errors

SITE = site()
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
CLASSES = [
    one
    for one in vars(errors).values()
    if isinstance(one, type) and issubclass(one, errors.UprofError)
]


def tags() -> set[str]:
    """Return the slugs of messages that are printed without an exception."""
    found = set()
    for module in nodes("unified_prof").values():
        for node in module:
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id == "tag"
                and node.args
                and isinstance(node.args[0], ast.Constant)
            ):
                found.add(str(node.args[0].value))
    return found


@cache
def error_calls() -> list[tuple[ast.Call, Path]]:
    """Return every call that creates an error; it takes a second, so not at import."""
    return list(SITE["raised"](nodes("unified_prof")))


@cache
def used_slugs() -> set[str]:
    """Return every slug that a message can have."""
    found = {slug for call, _ in error_calls() for slug in SITE["slugs_of"](call)} - {"*"}
    # `kind(...)` of pipeline/remote.py creates errors of a class in a parameter.
    return found | tags() | {one.slug for one in CLASSES} | {"remote-storage"}


ENTRIES = re.findall(r"^### (.+)$", PAGE, re.MULTILINE)


def test_every_raised_error_has_a_slug() -> None:
    unnamed = [
        f"{path.relative_to(ROOT)}:{call.lineno}"
        for call, path in error_calls()
        if not SITE["slugs_of"](call) and path.name != "errors.py"
    ]
    assert len(error_calls()) > 300
    assert unnamed == [], 'give slug="...", and the slug an entry in docs/troubleshooting.md'


def test_every_slug_is_documented_and_every_entry_is_used() -> None:
    assert sorted(used_slugs() - set(ENTRIES)) == [], "add an entry to docs/troubleshooting.md"
    assert sorted(set(ENTRIES) - used_slugs()) == [], (
        "nothing in the package has this name any more"
    )


@pytest.mark.parametrize("slug", sorted(set(ENTRIES)))
def test_each_entry_has_a_cause_and_a_fix(slug: str) -> None:
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", slug)
    assert ENTRIES.count(slug) == 1
    entry = PAGE.partition(f"\n### {slug}\n")[2].partition("\n#")[0]
    assert re.fullmatch(r"- \*\*Cause:\*\* .{20,}\n- \*\*Fix:\*\* .{15,}", entry.strip()), entry


@pytest.mark.slow
def test_site_lists_the_messages_of_each_error() -> None:
    shown = SITE["with_messages"](PAGE, nodes("unified_prof"))
    entry = shown.partition("\n### no-report\n")[2].partition("\n#")[0]
    assert "`… contains no readable report…`" in entry
    assert shown.count("**Messages:**") > 100


def test_slug_is_in_the_message_and_the_traceback() -> None:
    error = errors.StoreError("no", hint="do", slug="no-report")
    assert (str(error), error.tagged_message) == ("no", "no [uprof:no-report]")
    assert "[uprof:no-report]" in "".join(traceback.format_exception(error))
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.hint, copy.slug) == ("no", "do", "no-report")


def test_error_without_a_slug_has_that_of_its_class() -> None:
    class Own(errors.OutputError):
        pass

    assert Own("no").tagged_message == "no [uprof:output]"
    assert len({one.slug for one in CLASSES}) == len(CLASSES)
