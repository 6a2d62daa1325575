"""Run the tests that use torch with another version of torch, in a new environment.

    python scripts/compat.py 2.6.0                    # the tracking and backend tests
    python scripts/compat.py 2.14.1 --wild            # also third-party programs
    python scripts/compat.py 2.6.0 --python python3.12 --keep

The environment is created in `.cache/compat` with the dependencies that pyproject.toml declares, in
the versions that pip selects (not those of constraints.txt), as for a user who installs the package
today. It takes several gigabytes if torch has no CPU-only build, and is deleted afterwards unless
`--keep` is given. The last line printed is a row of the table in docs/validation.md; the exit code
is pytest's.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache" / "compat"
TESTS = (
    "tests/tracking",
    "tests/backends",
    "tests/pipeline/test_live.py",
    "tests/pipeline/test_run.py",
    "tests/cli/test_run_cpu.py",
)
WILD_PACKAGES = (
    "torchvision",
    "transformers",
    "diffusers",
    "timm",
    "lightning",
    "accelerate",
    "torch_geometric",
    "trl",
    "peft",
)
_SUMMARY = re.compile(r"(\d+) (passed|failed|skipped|errors?)")


def main() -> int:
    """Create the environment, run the tests and print the row."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("torch", help="a release of torch, such as 2.6.0")
    parser.add_argument("--python", default=sys.executable, help="the interpreter to use")
    parser.add_argument("--wild", action="store_true", help="run tests/wild too")
    parser.add_argument("--keep", action="store_true", help="do not delete the environment")
    options = parser.parse_args()
    folder = CACHE / f"torch-{options.torch}-{Path(options.python).name}"
    try:
        python = environment(folder, options.python, options.torch, wild=options.wild)
        return run_tests(python, wild=options.wild)
    finally:
        if not options.keep:
            shutil.rmtree(folder, ignore_errors=True)


def environment(folder: Path, interpreter: str, torch: str, *, wild: bool) -> Path:
    """Create the environment if it does not exist; return its interpreter."""
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([interpreter, "-m", "venv", folder], check=True)
    packages = ["-e", f"{ROOT}[torch,trace,postgres]", f"torch=={torch}"]
    packages += ["pytest>=8", "pytest-timeout>=2.3", "pytest-xdist>=3.6", "hypothesis>=6.100"]
    packages += WILD_PACKAGES if wild else ()
    pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, *packages], check=True)
    return python


def run_tests(python: Path, *, wild: bool) -> int:
    """Run the tests with `python`, print the table's row, return pytest's exit code."""
    found = subprocess.run(
        [
            python,
            "-c",
            "import platform, torch; print(platform.python_version(), torch.__version__)",
        ],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    command = [python, "-m", "pytest", "-n", "2", "--dist", "worksteal"]
    codes, cells = [], []
    runs = [("not clients and not timing", TESTS)]
    runs += [("clients", ("tests/wild",))] if wild else []
    for marks, tests in runs:
        result = subprocess.run(
            [*command, "-m", marks, *tests], cwd=ROOT, capture_output=True, text=True, check=False
        )
        print(result.stdout[-8000:], result.stderr[-2000:], sep="\n")
        counts = {what.rstrip("s"): n for n, what in _SUMMARY.findall(result.stdout[-400:])}
        cells.append(", ".join(f"{n} {what}" for what, n in counts.items()) or "nothing ran")
        codes.append(result.returncode)
    print(f"| {found[1]} | {found[0]} | {' | '.join(cells)} |")
    return max(codes, key=abs)


if __name__ == "__main__":
    sys.exit(main())
