"""The wheel and the sdist, built as for publication and used as installed."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.test_packaging import PROJECT
from unified_prof.version import VERSION

SUPPORTED = [one.rpartition(" ")[2] for one in PROJECT["classifiers"] if ":: Python :: 3." in one]
MISSING = ("No matching distribution", "Connection", "connection", "Network", "resolve")
pytestmark = pytest.mark.slow


def run(*command: str | Path, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=900, env={**environment, **more}
    )


def skip_if_offline(done: subprocess.CompletedProcess[str]) -> None:
    """Skip if a package could not be downloaded; fail on any other error."""
    output = done.stdout + done.stderr
    if done.returncode and any(word in output for word in MISSING) and "FAILED" not in output:
        pytest.skip(f"no package index answers: {output[-300:]}")
    assert done.returncode == 0, output[-6000:]


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the wheel and the sdist; the wheel is built from the sdist."""
    if find_spec("build") is None:
        pytest.skip("needs build")
    folder = tmp_path_factory.mktemp("dist")
    skip_if_offline(run(sys.executable, "-m", "build", "-o", folder, ROOT))
    found = {path.suffix: path for path in folder.iterdir()}
    return {"wheel": found[".whl"], "sdist": found[".gz"]}


def test_distributions_have_the_version_of_the_package(distributions: dict[str, Path]) -> None:
    assert distributions["wheel"].name == f"unified_prof-{VERSION}-py3-none-any.whl"
    assert distributions["sdist"].name == f"unified_prof-{VERSION}.tar.gz"


@pytest.mark.skipif(find_spec("twine") is None, reason="needs twine")
def test_metadata_passes_the_checks_of_the_package_index(distributions: dict[str, Path]) -> None:
    done = run(sys.executable, "-m", "twine", "check", "--strict", *distributions.values())
    assert done.returncode == 0, done.stdout + done.stderr


def test_wheel_contains_runtime_data_and_no_tests(distributions: dict[str, Path]) -> None:
    with zipfile.ZipFile(distributions["wheel"]) as wheel:
        names = wheel.namelist()
    tops = {name.partition("/")[0] for name in names}
    assert tops == {"unified_prof", f"unified_prof-{VERSION}.dist-info"}
    inside = {name.removeprefix("unified_prof/_resources/") for name in names}
    for folder in ("schemas", "migrations", "examples"):
        expected = {
            path.relative_to(ROOT).as_posix()
            for path in (ROOT / folder).rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        }
        assert expected
        assert expected <= inside, folder
    own = {path.relative_to(ROOT).as_posix() for path in (ROOT / "unified_prof").rglob("*.py")}
    assert own <= {*names}


def test_sdist_can_be_tested(distributions: dict[str, Path]) -> None:
    with tarfile.open(distributions["sdist"]) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    for name in ("Makefile", "constraints.txt", "tests/conftest.py", "docs/architecture.md"):
        assert name in names
    assert not {name for name in names if name.endswith((".pyc", ".sqlite", ".db"))}


def test_wheel_is_reproducible(distributions: dict[str, Path], tmp_path: Path) -> None:
    build = (sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", tmp_path)
    skip_if_offline(run(*build, distributions["sdist"]))
    (again,) = tmp_path.iterdir()
    assert again.read_bytes() == distributions["wheel"].read_bytes()


def test_tests_pass_from_the_sdist(distributions: dict[str, Path], tmp_path: Path) -> None:
    with tarfile.open(distributions["sdist"]) as sdist:
        sdist.extractall(tmp_path)
    (unpacked,) = tmp_path.iterdir()
    tests = [unpacked / "tests" / one for one in ("release", "test_packaging.py", "docs")]
    quick = ("-m", "not slow and not clients and not timing", "-n", "0", "-q")
    pytest_ = (sys.executable, "-m", "pytest", "--rootdir", unpacked)
    done = run(*pytest_, *quick, *tests, PYTHONPATH=str(unpacked))
    assert done.returncode == 0, done.stdout[-6000:]


def interpreter(python: str) -> str | None:
    """Return a working Python of a version, or None."""
    if sys.version_info[:2] == tuple(map(int, python.split("."))):
        return sys.executable
    names = [shutil.which(f"python{python}")]
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser() / "versions"
    names += [str(path / "bin" / "python") for path in sorted(pyenv.glob(f"{python}.*"))]
    for name in filter(None, names):
        # A shim may stand for a version that is not installed.
        if run(name, "-c", "import venv, ensurepip, sqlite3, ssl").returncode == 0:
            return name
    return None


@pytest.mark.parametrize("which", [0, -1], ids=["oldest", "newest"])
def test_wheel_reads_reports_on_two_pythons(distributions: dict[str, Path], which: int) -> None:
    script = ROOT / "scripts" / "try_wheel.py"
    found = [one for one in map(interpreter, SUPPORTED) if one is not None]
    if which and len(found) == 1:
        pytest.skip("needs a second Python")
    skip_if_offline(run(sys.executable, script, distributions["wheel"], "--python", found[which]))
