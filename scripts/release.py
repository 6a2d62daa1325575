"""Steps of a release that git does not do; see docs/releasing.md.

    python scripts/release.py prepare 0.2.0      # set the version, date the changelog
    python scripts/release.py check v0.2.0       # fail if tag, package and changelog differ
    python scripts/release.py notes v0.2.0       # print the changelog entry

The version is defined in unified_prof/version.py; tests/release compares all other places with it.
Uses the standard library only.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VERSION_LINE = re.compile(r'^VERSION = "(?P<version>[^"]+)"$', re.MULTILINE)
RECIPE_LINE = re.compile(r'^  version: "(?P<version>[^"]+)"$', re.MULTILINE)
# Releases and pre-releases of PEP 440; no local or development versions.
RELEASE = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)((a|b|rc)\d+)?")
HEADING = re.compile(r"^## \[(?P<name>[^\]]+)\](?: - (?P<date>\d{4}-\d\d-\d\d))?$", re.MULTILINE)
LINK = re.compile(r"^\[(?P<name>[^\]]+)\]: (?P<address>\S+)$", re.MULTILINE)
UNRELEASED = "Unreleased"
# Sections of Keep a Changelog.
KINDS = ("Added", "Changed", "Deprecated", "Removed", "Fixed", "Security")


class ReleaseError(Exception):
    """The release cannot be made."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one step; print the reason if it fails."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    steps = parser.add_subparsers(dest="step", required=True)
    steps.add_parser("prepare", help="write the version").add_argument("version")
    steps.add_parser("check", help="compare a tag with the files").add_argument("tag")
    steps.add_parser("notes", help="print the entry of the changelog").add_argument("tag")
    options = parser.parse_args(arguments)
    try:
        if options.step == "prepare":
            prepare(ROOT, options.version, datetime.now(timezone.utc).date().isoformat())
        elif options.step == "check":
            check(ROOT, options.tag)
        else:
            print(notes(ROOT, options.tag))
    except ReleaseError as mistake:
        print(f"release: {mistake}", file=sys.stderr)
        return 1
    return 0


def version(root: Path) -> str:
    """Return the version of the package."""
    return _found(VERSION_LINE, root / "unified_prof" / "version.py")["version"]


def entries(text: str) -> dict[str, str]:
    """Return the entries of a changelog by version, newest first."""
    heads = [*HEADING.finditer(text)]
    ends = [*(head.start() for head in heads[1:]), len(text)]
    return {
        head["name"]: text[head.end() : end].strip() for head, end in zip(heads, ends, strict=True)
    }


def prepare(root: Path, new: str, date: str) -> None:
    """Write a version to the files that contain it, and date its changelog entry.

    Raises:
        ReleaseError: The version is not valid or already released, or has no changelog entry.
    """
    if not RELEASE.fullmatch(new):
        raise ReleaseError(
            f"{new!r} is not a release version; expected for example 0.2.0 or 0.2.0rc1"
        )
    changelog = root / "CHANGELOG.md"
    text = changelog.read_text(encoding="utf-8")
    known = entries(text)
    if new in known:
        raise ReleaseError(f"CHANGELOG.md already has {new}")
    if not known.get(UNRELEASED):
        raise ReleaseError("CHANGELOG.md has no entries under [Unreleased]")
    head = f"## [{UNRELEASED}]"
    text = text.replace(head, f"{head}\n\n## [{new}] - {date}", 1)
    address = next(found["address"] for found in LINK.finditer(text) if found["name"] == UNRELEASED)
    home = address.partition("/compare/")[0].partition("/commits/")[0]
    text = text.replace(
        f"[{UNRELEASED}]: {address}",
        f"[{UNRELEASED}]: {home}/compare/v{new}...main\n[{new}]: {home}/releases/tag/v{new}",
    )
    changelog.write_text(text, encoding="utf-8")
    _write_version(VERSION_LINE, root / "unified_prof" / "version.py", new)
    _write_version(RECIPE_LINE, root / "conda" / "recipe.yaml", new)


def check(root: Path, tag: str) -> None:
    """Compare a tag with the package, the recipe and the changelog.

    Raises:
        ReleaseError: Their versions differ.
    """
    own = version(root)
    if tag != f"v{own}":
        raise ReleaseError(f"the tag is {tag}, but the package has version {own}: expected v{own}")
    recipe = _found(RECIPE_LINE, root / "conda" / "recipe.yaml")["version"]
    if recipe != own:
        raise ReleaseError(f"conda/recipe.yaml has version {recipe}, the package {own}")
    notes(root, tag)


def notes(root: Path, tag: str) -> str:
    """Return the changelog entry of a tag.

    Raises:
        ReleaseError: There is no entry.
    """
    said = entries((root / "CHANGELOG.md").read_text(encoding="utf-8")).get(tag.removeprefix("v"))
    if not said:
        raise ReleaseError(f"CHANGELOG.md has no entry [{tag.removeprefix('v')}]")
    return said


def _found(line: re.Pattern[str], path: Path) -> re.Match[str]:
    found = line.search(path.read_text(encoding="utf-8"))
    if found is None:
        raise ReleaseError(f"{path} has no line with the version")
    return found


def _write_version(line: re.Pattern[str], path: Path, new: str) -> None:
    found, text = _found(line, path), path.read_text(encoding="utf-8")
    begin, end = found.span("version")
    path.write_text(text[:begin] + new + text[end:], encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
