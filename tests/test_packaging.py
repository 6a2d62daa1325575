"""Metadata of the package and its dependencies."""

import ast
import re
import sys
from functools import cache
from typing import Any

import pytest
from click.testing import CliRunner

from tests.conftest import ROOT
from tests.processes import run
from tests.source_trees import nodes
from unified_prof import errors
from unified_prof.cli.app import app

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

yaml: Any = pytest.importorskip("yaml")
DOCUMENT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT, TOOLS = DOCUMENT["project"], DOCUMENT["tool"]
REPOSITORY = PROJECT["urls"]["Repository"]
# Installed with the Ascend toolkit, not from a package index.
TOOLKIT_MODULES = {"mstx", "acl"}
DISTRIBUTIONS = {"google": "protobuf", "IPython": "ipython"}
"""Module -> distribution, if their names differ."""


def distribution(requirement: str) -> str:
    """Return the distribution name of a requirement."""
    match = re.match(r"[A-Za-z0-9_.-]+", requirement)
    assert match is not None
    return match[0].lower()


@cache
def imported() -> frozenset[str]:
    """Return the top-level names of all imports of the package, at any depth."""
    names: set[str] = set()
    for folder in ("unified_prof", "migrations"):
        for found in nodes(folder).values():
            for node in found:
                if isinstance(node, ast.Import):
                    names.update(alias.name.partition(".")[0] for alias in node.names)
                elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                    names.add(node.module.partition(".")[0])
    names -= {*sys.stdlib_module_names, "tomllib", "unified_prof"}
    return frozenset(DISTRIBUTIONS.get(name, name) for name in names)


REQUIRED = {distribution(one) for one in PROJECT["dependencies"]}
EXTRAS = {
    distribution(one)
    for extra, requirements in PROJECT["optional-dependencies"].items()
    if extra not in ("dev", "docs")
    for one in requirements
}


@pytest.mark.slow
def test_every_requirement_is_imported() -> None:
    assert REQUIRED - imported() == set()


def test_every_import_is_a_requirement_or_an_extra() -> None:
    assert imported() - REQUIRED - EXTRAS - TOOLKIT_MODULES == set()


def test_readme_links_work_on_the_package_index() -> None:
    hook = TOOLS["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    (fragment,) = hook["fragments"]
    text = (ROOT / fragment["path"]).read_text(encoding="utf-8")
    for rule in hook["substitutions"]:
        text = re.sub(rule["pattern"], rule["replacement"], text)
    targets = re.findall(r"\]\(([^)\s]+)\)", text)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", one.lower()).replace(" ", "-") for one in headings}
    assert targets
    for target in targets:
        if target.startswith("#"):
            assert target[1:] in anchors, target
            continue
        assert target.startswith("https://"), target
        local = re.match(
            rf"(?:{REPOSITORY}/blob|{REPOSITORY.replace('github', 'raw.githubusercontent')})"
            r"/main/([^#]+)",
            target,
        )
        assert local is None or (ROOT / local[1]).is_file(), target


def test_license_file_is_the_declared_license() -> None:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert PROJECT["license"] == "Apache-2.0"
    assert "Apache License" in text.split("\n", 3)[1]
    assert "Version 2.0, January 2004" in text
    assert PROJECT["license-files"] == ["LICENSE", "NOTICE"]


@pytest.mark.parametrize("name", ["Homepage", "Repository", "Issues", "Changelog", "Documentation"])
def test_project_urls_are_in_the_repository(name: str) -> None:
    assert PROJECT["urls"][name].startswith(REPOSITORY)


def test_classifiers_name_the_supported_python_versions() -> None:
    oldest = PROJECT["requires-python"].removeprefix(">=")
    named = [one.rpartition(" ")[2] for one in PROJECT["classifiers"] if ":: Python :: 3." in one]
    assert named[0] == oldest
    assert len(set(PROJECT["classifiers"])) == len(PROJECT["classifiers"])


def test_exit_codes_are_documented() -> None:
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    table = page.partition("## Exit codes")[2]
    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)}
    classes = [one for one in vars(errors).values() if isinstance(one, type)]
    codes = {one.exit_code for one in classes if issubclass(one, errors.UprofError)}
    assert codes | {0, errors.INCONCLUSIVE_EXIT_CODE, errors.BUG_EXIT_CODE} == documented


ALLOWED = {
    "only backends and tracking import torch": {"backends", "tracking"},
    "only schema, sqlite, migrate and baselines import SQLAlchemy and Alembic": {
        *("schema", "sqlite", "migrate", "baselines")
    },
    "only the command line imports Click": {"cli"},
    "only the command line and report import Rich": {"cli", "report"},
}


def test_import_contracts_cover_every_package_except_the_named_ones() -> None:
    names = {path.stem for path in (ROOT / "unified_prof").glob("*.py")}
    names |= {path.parent.name for path in (ROOT / "unified_prof").glob("*/__init__.py")}
    names = {name for name in names if not name.startswith("__")} - {"version"}
    contracts = {
        contract["name"]: {one.removeprefix("unified_prof.") for one in contract["source_modules"]}
        for contract in TOOLS["importlinter"]["contracts"]
        if contract["name"].startswith("only ")
    }
    assert contracts == {name: names - allowed for name, allowed in ALLOWED.items()}


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a checkout")
def test_the_sdist_has_every_file_of_the_project() -> None:
    files = run("git", "ls-files", cwd=ROOT, check=True).stdout.split()
    included = TOOLS["hatch"]["build"]["targets"]["sdist"]["include"]
    assert {file.split("/")[0] for file in files} - {"pyproject.toml"} == set(included)


def test_pre_commit_hook_runs_a_command_of_uprof() -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    program, command = hook["entry"].split()
    assert program in PROJECT["scripts"]
    assert CliRunner().invoke(app, [command, "--help"]).exit_code == 0
    assert not hook["pass_filenames"]
    assert hook["id"] in (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    targets = [one["entry"].split() for one in config["repos"][0]["hooks"]]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert all(program == "make" and f"\n{target}:" in makefile for program, target in targets)
