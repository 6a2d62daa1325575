"""GitHub workflows match the schema, pin versions and have minimal permissions."""

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.processes import run
from tests.release.programs import program
from tests.test_packaging import PROJECT

yaml: Any = pytest.importorskip("yaml")
FOLDER = ROOT / ".github" / "workflows"
WORKFLOWS = sorted(path.name for path in FOLDER.glob("*.yml"))
VERSION = re.compile(r"v\d+\.\d+\.\d+")


def workflow(name: str) -> dict[Any, Any]:
    found: dict[Any, Any] = yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))
    return found


def jobs(name: str) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = workflow(name)["jobs"]
    return found


def steps(name: str) -> list[dict[str, Any]]:
    return [step for job in jobs(name).values() for step in job.get("steps", ())]


def test_workflows_for_tests_and_releases_exist() -> None:
    assert {"ci.yml", "release.yml", "wheel.yml"} <= {*WORKFLOWS}


@pytest.mark.parametrize("name", WORKFLOWS)
def test_third_party_actions_are_pinned_to_a_version(name: str) -> None:
    used = [step["uses"] for step in steps(name) if "uses" in step]
    used += [job["uses"] for job in jobs(name).values() if "uses" in job]
    assert used
    for one in used:
        if one.startswith("./"):
            assert (ROOT / one).is_file(), one
        else:
            assert VERSION.fullmatch(one.partition("@")[2]), one


@pytest.mark.parametrize("name", WORKFLOWS)
def test_jobs_have_read_permission_only_unless_they_publish(name: str) -> None:
    assert workflow(name)["permissions"] == {}
    writes = {
        (job, right)
        for job, settings in jobs(name).items()
        for right, how in settings["permissions"].items()
        if how != "read"
    }
    expected = {("publish", "id-token"), ("announce", "contents"), ("image", "packages")}
    assert writes == (expected if name == "release.yml" else set())


@pytest.mark.parametrize("name", WORKFLOWS)
def test_checkouts_drop_their_token_and_jobs_have_a_timeout(name: str) -> None:
    for step in steps(name):
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False
    assert all("timeout-minutes" in job or "uses" in job for job in jobs(name).values())


@pytest.mark.parametrize("name", WORKFLOWS)
def test_commands_are_valid_and_contain_no_untrusted_text(name: str) -> None:
    for step in steps(name):
        if "run" in step:
            assert "${{" not in step["run"], "expressions go through the environment"
            done = subprocess.run(["bash", "-n", "-c", step["run"]], capture_output=True)
            assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", WORKFLOWS)
def test_files_and_targets_named_by_commands_exist(name: str) -> None:
    text = "\n".join(step.get("run", "") for step in steps(name))
    for path in re.findall(r"(?:scripts/\w+\.py|\.ci/run)", text):
        assert (ROOT / path).is_file(), path
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"\bmake (\w+)", text):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_wheel_is_tested_on_every_supported_python_and_system() -> None:
    matrix = jobs("wheel.yml")["try"]["strategy"]["matrix"]
    named = [one.rpartition(" ")[2] for one in PROJECT["classifiers"] if ":: Python :: 3." in one]
    assert matrix["python"] == named
    assert {one.partition("-")[0] for one in matrix["system"]} == {"ubuntu", "macos", "windows"}


def test_nothing_is_published_before_the_wheel_is_tested() -> None:
    release = jobs("release.yml")
    assert release["wheel"] == {
        "needs": "agree",
        "uses": "./.github/workflows/wheel.yml",
        "permissions": {"contents": "read"},
    }
    assert release["publish"]["needs"] == "wheel"
    assert release["announce"]["needs"] == release["image"]["needs"] == "publish"


def test_lock_has_a_hash_for_every_pinned_version() -> None:
    """`python scripts/lock.py` writes it after a change of constraints.txt."""

    def pinned(name: str) -> dict[str, str]:
        lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
        parts = (line.partition("==") for line in lines if line and line[0] != "#")
        return {re.sub(r"[-_.]+", "-", name).lower(): rest for name, _, rest in parts}

    locked = pinned("requirements.lock")
    hashed = re.compile(r"\S+ --hash=sha256:[0-9a-f]{64}")
    assert all(hashed.fullmatch(rest) for rest in locked.values())
    versions = {name: re.split(r"[ +]", rest)[0] for name, rest in locked.items()}  # 2.13.0+cpu
    constrained = pinned("constraints.txt")
    assert versions == {name: rest.partition(" ")[0] for name, rest in constrained.items()}


@pytest.mark.slow
@pytest.mark.skipif(find_spec("check_jsonschema") is None, reason="needs check-jsonschema")
def test_workflows_match_the_schema_of_github() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema"]
    for schema, files in (
        ("vendor.github-workflows", [FOLDER / name for name in WORKFLOWS]),
        ("vendor.github-actions", [ROOT / "action.yml"]),
    ):
        done = run(*command, schema, *files)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("actionlint", ["-no-color"]),
        # Actions are pinned by version, not by hash, so that Dependabot can update readable names.
        ("zizmor", ["--offline", "--no-progress", "--min-severity", "medium", "--config"]),
    ],
)
def test_workflow_linters_find_nothing(tool: str, arguments: list[str], tmp_path: Path) -> None:
    linter = program(tool)
    if linter is None:
        pytest.skip(f"needs {tool}")
    if arguments[-1] == "--config":
        config = tmp_path / "zizmor.yml"
        config.write_text('rules: {unpinned-uses: {config: {policies: {"*": ref-pin}}}}\n')
        arguments = [*arguments, str(config)]
    files = [str(FOLDER / name) for name in WORKFLOWS]
    done = run(linter, *arguments, *files)
    assert done.returncode == 0, done.stdout + done.stderr
