"""Install a wheel into a new environment without torch, and try it.

    python scripts/try_wheel.py dist/unified_prof-0.1.0-py3-none-any.whl
    python scripts/try_wheel.py dist/*.whl --python python3.12

Checks the content of the wheel (schemas, migrations, examples), and runs every command that only
reads files once on small inputs: `build`, `import`, `report`, `diff`, `gate`, `advise`, `export`
and `db`. The exit code is 0 if all checks passed. Runs on Linux, macOS and Windows; uses nothing of
this checkout except a recording of tests/data.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RECORDING = ROOT / "tests" / "data" / "prof" / "stars.tar.xz"
WINDOWS = os.name == "nt"

INSIDE = """
import importlib.util, pathlib, sys, sysconfig
import unified_prof
from unified_prof.schema.catalogue import resource_directory
assert importlib.util.find_spec("torch") is None, "torch is installed, although nothing requires it"
package = pathlib.Path(unified_prof.__file__).resolve()
assert package.is_relative_to(pathlib.Path(sys.prefix).resolve()), f"this is {package}"
assert (package.parent / "py.typed").is_file()
for name, pattern in (("schemas", "*.sql"), ("migrations", "*.py"), ("examples", "*.py")):
    found = [*resource_directory(name).rglob(pattern)]
    assert found, f"no {pattern} in {name}"
    assert resource_directory(name).is_relative_to(package.parent), resource_directory(name)
    print(f"{len(found)} files of {name}")
"""


def main() -> int:
    """Install the wheel, try it and print the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wheel", type=Path, help="wheel or source distribution")
    parser.add_argument("--python", default=sys.executable, help="Python interpreter to use")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="try-wheel-", ignore_cleanup_errors=True) as folder:
        place = Path(folder).resolve()
        python = installed(options.wheel.resolve(), options.python, place / "env")
        return 0 if Trial(python, place).all() else 1


def installed(wheel: Path, python: str, folder: Path) -> Path:
    """Return the interpreter of a new environment with the wheel and its dependencies."""
    subprocess.run([python, "-m", "venv", "--without-pip", folder], check=True)
    inside = folder / ("Scripts/python.exe" if WINDOWS else "bin/python")
    # The pip of this Python; commands compile only the modules that they import.
    pip = [sys.executable, "-m", "pip", "--python", inside, "--disable-pip-version-check"]
    install = [*pip, "install", "-q", "--no-compile", wheel]
    subprocess.run(install, check=True, env=clean(folder.parent))
    return inside


def clean(home: Path) -> dict[str, str]:
    """Return environment variables without a checkout and state of earlier runs."""
    ours = {key: value for key, value in os.environ.items() if not key.startswith("UPROF_")}
    ours.pop("PYTHONPATH", None)
    return {**ours, "XDG_CACHE_HOME": str(home / "cache"), "XDG_STATE_HOME": str(home / "state")}


class Trial:
    """The installed package, tried in a new directory."""

    def __init__(self, python: Path, place: Path) -> None:
        self.python, self.place = python, place / "work"
        self.uprof = python.parent / ("uprof.exe" if WINDOWS else "uprof")
        self.environment = clean(place)
        self.well = True
        self.place.mkdir()

    def all(self) -> bool:
        """Try everything that needs no device; return True if all checks passed."""
        self.run([self.python, "-c", INSIDE], "files of migrations")
        self.command("--version", says="uprof ")
        self.command("doctor", says="PyTorch is not installed")
        self.databases()
        self.traces()
        self.recording()
        return self.well

    def databases(self) -> None:
        """Create, upgrade and check databases."""
        self.command("db", "create", "old.db", "--schema", "1.0.0_20241112", says="created")
        self.command("db", "upgrade", "old.db", says="original kept as old.db.bak")
        self.command("db", "check", "old.db", says="no problems found")
        self.command("db", "history", says="1.0.0_20241112")

    def traces(self) -> None:
        """Import two traces, report them and compare them."""
        for name, kernel_us in (("base", 400), ("new", 600)):
            text = json.dumps({"traceEvents": events(kernel_us)})
            (self.place / f"{name}.json").write_text(text, encoding="utf-8")
            self.command("import", f"{name}.json", "-o", f"{name}.db", says=f"{name}.db")
        for form in ("text", "json", "csv", "markdown"):
            self.command("report", "base.db", "--format", form, says="mm")
        self.command("report", "base.db", "-o", "page.html", makes="page.html")
        self.command("trace", "base.db", "-o", "timeline.json", makes="timeline.json")
        self.command("diff", "base.db", "new.db", says="mm")
        self.command("gate", "base.db", "new.db", "--max-regress", "5%", says="total", codes=(1, 3))
        self.command("gate", "base.db", "base.db", codes=(0, 2, 3))
        self.command("advise", "base.db", says="base.db")

    def recording(self) -> None:
        """Build a database from an Ascend recording, and export it."""
        with tarfile.open(RECORDING) as archive:
            if sys.version_info >= (3, 12):
                archive.extractall(self.place / "in", filter="data")
            else:
                archive.extractall(self.place / "in")
        self.command("build", "in", "-o", "out", says="Ascend PROF_* directory")
        databases = [*(self.place / "out").rglob("msprof_*.db")]
        self.expect("build writes one database", len(databases) == 1)
        for database in databases:
            self.command("db", "check", str(database), says="no problems found")
            self.command("report", str(database), says="device")
            self.command("export", str(database), "-o", "files")
        self.expect("export writes files", any((self.place / "files").rglob("*.csv")))

    def command(
        self, *arguments: str, says: str = "", makes: str = "", codes: tuple[int, ...] = (0,)
    ) -> None:
        """Run a command of uprof."""
        self.run([self.uprof, *arguments], says, makes, codes)

    def run(
        self,
        command: list[str | Path],
        says: str = "",
        makes: str = "",
        codes: tuple[int, ...] = (0,),
    ) -> None:
        """Run a command and check its exit code, output and files."""
        done = subprocess.run(
            command,
            cwd=self.place,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=300,
        )
        ours = command[0] == self.uprof
        name = " ".join(["uprof", *map(str, command[1:])]) if ours else "content of the wheel"
        well = done.returncode in codes and says in done.stdout + done.stderr
        well = well and "Traceback" not in done.stderr
        self.expect(name, well and (not makes or (self.place / makes).is_file()))
        if not well:
            print(f"exit code {done.returncode}, expected one of {codes} and {says!r}")
            print(done.stdout[-4000:], done.stderr[-4000:], sep="\n")

    def expect(self, what: str, well: bool) -> None:
        """Print the result of a check."""
        self.well &= well
        print("passed" if well else "FAILED", what, flush=True)


def events(kernel_us: int) -> list[dict[str, object]]:
    """Return the events of a trace of four steps, with one matrix product each."""
    found: list[dict[str, object]] = []

    def add(category: str, name: str, at_us: int, for_us: int, where: int, **more: object) -> None:
        whole = {"ph": "X", "cat": category, "name": name, "ts": at_us, "dur": for_us}
        device = category == "kernel"
        found.append({**whole, "pid": 0 if device else 1, "tid": where, "args": more})

    for step in range(4):
        at = 10_000 + 2_000 * step
        launch = 70 + step
        add("user_annotation", f"ProfilerStep#{step}", at, 1_900, 1)
        add("cpu_op", "aten::mm", at + 10, 60, 1, **{"External id": launch})
        add("cuda_runtime", "cudaLaunchKernel", at + 20, 10, 1, correlation=launch)
        add("kernel", "gemm", at + 100, kernel_us, 7, correlation=launch, device=0, stream=7)
    return found


if __name__ == "__main__":
    sys.exit(main())
