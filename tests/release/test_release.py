"""Releases: one place for the version, a well-formed changelog, and a matching tag."""

import importlib.util
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from unified_prof import version

CHANGELOG = """# Changelog

[Unreleased]: https://example.org/uprof/compare/v0.9.0...main
[0.9.0]: https://example.org/uprof/releases/tag/v0.9.0

## [Unreleased]

### Added

- A thing.

## [0.9.0] - 2026-01-02

### Fixed

- Another.
"""


@pytest.fixture(scope="module")
def release() -> Any:
    spec = importlib.util.spec_from_file_location("release", ROOT / "scripts" / "release.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a directory with the files that contain the version, 0.9.0."""
    for name in ("unified_prof/version.py", "conda/recipe.yaml"):
        (tmp_path / name).parent.mkdir()
        text = (ROOT / name).read_text(encoding="utf-8")
        (tmp_path / name).write_text(text.replace(version.VERSION, "0.9.0", 1), encoding="utf-8")
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG, encoding="utf-8")
    return tmp_path


def test_changelog_is_well_formed_and_has_an_unreleased_section(release: Any) -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    known = release.entries(text)
    assert next(iter(known)) == release.UNRELEASED
    links = {found["name"] for found in release.LINK.finditer(text)}
    assert links == {*known}
    for name, entry in known.items():
        kinds = [line[4:] for line in entry.splitlines() if line.startswith("### ")]
        assert kinds, name
        assert {*kinds} <= {*release.KINDS}, name
        assert len({*kinds}) == len(kinds), name


def test_released_versions_are_dated_and_the_latest_is_that_of_the_package(release: Any) -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    released = [head for head in release.HEADING.finditer(text) if head["name"] != "Unreleased"]
    assert all(head["date"] for head in released)
    if released:
        assert released[0]["name"] == version.VERSION


def test_all_files_have_the_version_of_the_package(release: Any) -> None:
    assert release.version(ROOT) == version.VERSION
    recipe = (ROOT / "conda" / "recipe.yaml").read_text(encoding="utf-8")
    assert release.RECIPE_LINE.search(recipe)["version"] == version.VERSION


def test_release_is_prepared_in_one_step(release: Any, checkout: Path) -> None:
    release.prepare(checkout, "0.10.0rc1", "2026-02-03")
    assert release.version(checkout) == "0.10.0rc1"
    text = (checkout / "CHANGELOG.md").read_text(encoding="utf-8")
    assert "## [Unreleased]\n\n## [0.10.0rc1] - 2026-02-03\n\n### Added\n\n- A thing.\n" in text
    assert [found["address"] for found in release.LINK.finditer(text)] == [
        "https://example.org/uprof/compare/v0.10.0rc1...main",
        "https://example.org/uprof/releases/tag/v0.10.0rc1",
        "https://example.org/uprof/releases/tag/v0.9.0",
    ]
    release.check(checkout, "v0.10.0rc1")
    assert release.notes(checkout, "v0.10.0rc1") == "### Added\n\n- A thing."


def test_the_first_release_can_be_prepared(release: Any, checkout: Path) -> None:
    shutil.copy(ROOT / "CHANGELOG.md", checkout)
    release.prepare(checkout, "77.0.0", "2026-02-03")
    release.check(checkout, "v77.0.0")


@pytest.mark.parametrize(
    ("new", "words"),
    [
        ("v0.10.0", "not a release version"),
        ("0.10", "not a release version"),
        ("0.9.0", "already has 0.9.0"),
    ],
)
def test_invalid_version_is_refused(release: Any, checkout: Path, new: str, words: str) -> None:
    with pytest.raises(release.ReleaseError, match=words):
        release.prepare(checkout, new, "2026-02-03")


def test_release_without_changes_is_refused(release: Any, checkout: Path) -> None:
    release.prepare(checkout, "0.10.0", "2026-02-03")
    with pytest.raises(release.ReleaseError, match="has no entries"):
        release.prepare(checkout, "0.11.0", "2026-02-04")


@pytest.mark.parametrize("tag", ["0.9.0", "v0.9.1", "main"])
def test_tag_other_than_the_version_is_refused(release: Any, checkout: Path, tag: str) -> None:
    with pytest.raises(release.ReleaseError, match=r"expected v0\.9\.0"):
        release.check(checkout, tag)


def test_recipe_with_an_outdated_version_is_refused(release: Any, checkout: Path) -> None:
    recipe = checkout / "conda" / "recipe.yaml"
    recipe.write_text(recipe.read_text(encoding="utf-8").replace('"0.9.0"', '"0.8.0"'))
    with pytest.raises(release.ReleaseError, match=r"recipe\.yaml has version 0\.8\.0"):
        release.check(checkout, "v0.9.0")


def test_result_of_a_step_is_the_exit_code(
    release: Any,
    checkout: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(release, "ROOT", checkout)
    assert release.main(["notes", "v0.9.0"]) == 0
    assert capsys.readouterr().out == "### Fixed\n\n- Another.\n"
    assert release.main(["check", "v1.0.0"]) == 1
    assert capsys.readouterr().err.startswith("release: the tag is v1.0.0")
