"""How the code is laid out: lines, modules, levels and import arrows of every package.

    python scripts/structure.py              # this checkout
    python scripts/structure.py DIR          # another one, to compare with

`levels` is the longest chain of imports among a package's own modules, `arrows` how many imports
lead from one of its modules to another. A package that grows in levels and arrows faster than in
modules wants rooms. Subpackages are counted with the package above as well.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "unified_prof"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT)
    folder = parser.parse_args().folder.resolve()
    sys.path.insert(0, str(folder))
    graph = grimp.build_graph(PACKAGE, cache_dir=None, exclude_type_checking_imports=True)
    modules = {name: _file(folder, name) for name in graph.modules}
    print("| package | lines | modules | levels | arrows |")
    print("|---|---|---|---|---|")
    for package in sorted(name for name, file in modules.items() if file.name == "__init__.py"):
        members = {name for name in modules if name == package or name.startswith(f"{package}.")}
        arrows = {
            name: graph.find_modules_directly_imported_by(name) & members - {package}
            for name in members - {package}
        }
        lines = sum(_lines(modules[name]) for name in members)
        count = sum(len(targets) for targets in arrows.values())
        print(f"| {package} | {lines:,} | {len(members)} | {_levels(arrows)} | {count} |")


def _levels(arrows: dict[str, set[str]]) -> int:
    """Return how many levels modules stand on; those in circles are one level together."""
    left = {name: set(targets) for name, targets in arrows.items()}
    levels = 0
    while left:
        lowest = {name for name, targets in left.items() if not targets & left.keys()}
        levels += 1
        for name in lowest or set(left):
            del left[name]
    return levels


def _file(folder: Path, module: str) -> Path:
    path = folder.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


if __name__ == "__main__":
    main()
