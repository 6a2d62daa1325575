"""Measure the structure of the package: lines, modules, import arrows and levels.

    python scripts/structure.py                    # totals, and a row per package
    python scripts/structure.py --before REV       # also totals of another revision
    python scripts/structure.py --report DATABASE  # also the modules that `uprof report` imports

An *arrow* is one module that imports another one of the package at run time, a *level* a step of
the longest import chain, a *small* module has fewer than 60 lines. `tests/test_structure.py`
compares the totals with `[tool.structure]` of pyproject.toml.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "unified_prof"
SMALL_LINES = 60  # Modules below this are counted as small.


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", metavar="REV", help="revision to compare with")
    parser.add_argument("--report", metavar="DATABASE", type=Path, help="a small database")
    options = parser.parse_args()
    rows = {"now": totals(ROOT, options.report)}
    if options.before:
        # Imported late: the package of this checkout would hide the other one from `grimp`.
        from checkouts import checkout

        with checkout(options.before) as folder:
            rows = {"before": _totals_in_process(folder, options.report), **rows}
    names = list(rows["now"])
    print("| | " + " | ".join(rows) + " |")
    print("|---|" + "---|" * len(rows))
    for name in names:
        print(f"| {name} | " + " | ".join(f"{values[name]:,}" for values in rows.values()) + " |")
    if not options.before:
        print()
        _print_packages(ROOT)


def totals(folder: Path, database: Path | None = None) -> dict[str, int]:
    """Return the figures of one checkout by name."""
    graph = _graph(folder)
    files = {name: module_file(folder, name) for name in graph.modules}
    lines = {name: line_count(file) for name, file in files.items()}
    imports = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
    file_names = Counter(file.name for file in files.values() if file.name != "__init__.py")
    found = {
        "lines": sum(lines.values()),
        "modules": len(files),
        "arrows": sum(map(len, imports.values())),
        "levels": level_count(imports),
        "small_modules": sum(
            count < SMALL_LINES and files[name].name != "__init__.py"
            for name, count in lines.items()
        ),
        "repeated_file_names": sum(count > 1 for count in file_names.values()),
        "imports_in_functions": sum(map(_imports_in_functions, files.values())),
        "test_lines": sum(map(line_count, sorted((folder / "tests").rglob("*.py")))),
    }
    if database is not None:
        found["modules_imported_by_report"] = _imported_by_report(folder, database)
    return found


def _totals_in_process(folder: Path, database: Path | None) -> dict[str, int]:
    """Return the figures of another checkout; a process has only one package of a name."""
    code = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[1]); import structure;"
        "print(structure.totals(*map(Path, sys.argv[2:])))"
    )
    words = [Path(__file__).parent, folder, *([] if database is None else [database.resolve()])]
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, words)],
        capture_output=True,
        text=True,
        check=True,
        cwd=folder,
    )
    values: dict[str, int] = ast.literal_eval(done.stdout)
    return values


def _graph(folder: Path) -> grimp.ImportGraph:
    sys.path.insert(0, str(folder))
    return grimp.build_graph(PACKAGE, cache_dir=None, exclude_type_checking_imports=True)


def _print_packages(folder: Path) -> None:
    graph = _graph(folder)
    print("| package | lines | modules | levels | arrows |")
    print("|---|---|---|---|---|")
    for package in sorted(
        name for name in graph.modules if module_file(folder, name).name == "__init__.py"
    ):
        members = {name for name in graph.modules if f"{name}.".startswith(f"{package}.")}
        arrows = {name: graph.find_modules_directly_imported_by(name) & members for name in members}
        lines = sum(line_count(module_file(folder, name)) for name in members)
        count = sum(map(len, arrows.values()))
        print(f"| {package} | {lines:,} | {len(members)} | {level_count(arrows)} | {count} |")


def level_count(imports: dict[str, set[str]]) -> int:
    """Return the length of the longest import chain; the modules of a cycle count as one."""
    left = {name: set(targets) for name, targets in imports.items()}
    levels = 0
    while left:
        lowest = {name for name, targets in left.items() if not targets & left.keys()}
        levels += 1
        for name in lowest or min((_needed(name, left) for name in left), key=len):
            del left[name]
    return levels


def _needed(module: str, imports: dict[str, set[str]]) -> set[str]:
    """Return a module and all modules that it imports, directly or not."""
    needed, new = {module}, {module}
    while new:
        new = set().union(*(imports[name] & imports.keys() for name in new)) - needed
        needed |= new
    return needed


def module_file(folder: Path, module: str) -> Path:
    """Return the file of a module of the package."""
    path = folder.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def line_count(path: Path) -> int:
    """Return the number of lines of a file."""
    return path.read_bytes().count(b"\n")


def _imports_in_functions(path: Path) -> int:
    """Return how many imports of the package's own modules are inside functions."""
    source = path.read_text(encoding="utf-8")
    if not re.search(rf"^ +from {PACKAGE}", source, re.MULTILINE):
        return 0  # without the time to parse it
    tree = ast.parse(source)
    return sum(
        isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
    )


def _imported_by_report(folder: Path, database: Path) -> int:
    """Return how many modules of the package `uprof report --by kernel DATABASE` imports."""
    code = (
        "import sys\n"
        "from unified_prof.__main__ import main\n"
        f"sys.argv = ['uprof', 'report', '--by', 'kernel', {str(database.resolve())!r}]\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        f"print(sum(name.startswith('{PACKAGE}') for name in sys.modules), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=folder,
        env={"PYTHONPATH": str(folder), "PATH": ""},
    )
    return int(done.stderr.splitlines()[-1])


if __name__ == "__main__":
    main()
