"""Everything except live profiling works and starts fast without torch."""

import json
import subprocess
from pathlib import Path

import pytest

import unified_prof
from tests import processes
from tests.conftest import ROOT
from tests.costs import processor_s

pytestmark = pytest.mark.fresh_interpreter

CALLBACKS = ("integrations/lightning.py", "integrations/transformers.py")
HEAVY = {"torch", "numpy", "sqlalchemy", "alembic"}
PACKAGE = Path(unified_prof.__file__).parent

# Refuses torch as if it were not installed, before the package is imported.
BLOCK_TORCH = """\
import sys

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "torch_npu"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NoTorch())
"""


def python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return processes.python("-c", code, *arguments)


@pytest.mark.slow
def test_every_module_imports_without_torch() -> None:
    names = [
        ".".join((PACKAGE.name, *path.relative_to(PACKAGE).with_suffix("").parts))
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.stem != "__main__"
        and "_resources" not in path.parts
        # Callbacks subclass classes of their trainer and need its package.
        and path.relative_to(PACKAGE).as_posix() not in CALLBACKS
    ]
    code = f"""{BLOCK_TORCH}
import importlib
for name in {[name.removesuffix(".__init__") for name in names]!r}:
    importlib.import_module(name)
"""
    done = python(code)
    assert done.returncode == 0, done.stderr


MAIN = "\nfrom unified_prof.cli.app import main\nmain(sys.argv[1:])\n"


def test_doctor_works_without_torch() -> None:
    done = python(BLOCK_TORCH + MAIN, "doctor", "--json")
    assert done.returncode == 0, done.stderr
    backends = json.loads(done.stdout)["backends"]
    unavailable = {"available": False, "reason": "PyTorch is not installed", "doubt": None}
    assert backends["cpu"] == unavailable


@pytest.mark.slow
def test_doctor_reports_that_torch_is_missing() -> None:
    done = python(BLOCK_TORCH + MAIN, "doctor")
    assert "PyTorch is not installed" in done.stdout


@pytest.mark.quick(cases=1)
@pytest.mark.parametrize("backend", ["cpu", "cuda", "auto"])
def test_run_without_torch_fails_with_an_explanation(backend: str) -> None:
    script = ROOT / "examples" / "train.py"
    done = python(BLOCK_TORCH + MAIN, "run", "--backend", backend, str(script))
    assert done.returncode == 4
    assert "PyTorch is not installed" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.quick(cases=1)
@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"]])
def test_help_is_fast_and_imports_nothing_heavy(arguments: list[str]) -> None:
    code = f"""
import sys, atexit
atexit.register(lambda: print(sorted({HEAVY} & {{*sys.modules}})))
{MAIN}"""
    for _ in range(3):  # another program may slow down one of the two processes
        before_s = processor_s()
        python("import click")
        between_s = processor_s()
        done = python(code, *arguments)
        used_s = processor_s() - between_s
        assert done.returncode == 0, done.stderr
        assert done.stdout.rstrip().endswith("[]")
        # CPU time, because other tests run at the same time; click alone takes 0.7 of it.
        if used_s < 4 * (between_s - before_s):
            return
    pytest.fail(f"{used_s:.2f} s, click alone {between_s - before_s:.2f} s, three times")


@pytest.mark.slow
def test_run_loads_no_analysis_before_the_workload() -> None:
    code = "import sys, unified_prof.pipeline.live; print(*sys.modules)"
    loaded = python(code).stdout.split()
    assert "unified_prof.pipeline.live" in loaded
    later = ("explain", "recording", "decoders", "report")
    assert not [name for name in loaded if name.removeprefix("unified_prof.").startswith(later)]


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = f"import sys, unified_prof; print(sorted({HEAVY} & {{*sys.modules}}))"
    assert python(code).stdout == "[]\n"
