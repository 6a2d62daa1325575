"""Sample mutants of the package, run the nearest quick tests on each, and list the survivors.

    python scripts/mutate.py --sample 100 --since 466e6e4 [--seed 1] [unified_prof/cluster ...]

A mutant is one changed expression: a comparison, an arithmetic or boolean operator, a constant, a
condition or a statement that is a call. Mutants are made in a copy of the checkout. For each, the
test files that import the module run first, those of the same package next, at most `--files` of
them, without tests marked slow; the first failure kills the mutant. mutmut and cosmic-ray run the
whole suite, or need a session per module, which takes days for a package of this size.

The exit code is 1 if fewer than `--at-least` percent of the mutants are killed.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
SYMBOLS = {
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=",
    ast.Is: "is", ast.IsNot: "is not", ast.In: "in", ast.NotIn: "not in", ast.And: "and",
    ast.Or: "or", ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//",
    ast.BitAnd: "&", ast.BitOr: "|",
}  # fmt: skip
# Longest time that the tests of one mutant may take: an endless loop counts as killed.
TIMEOUT_S = 240


class Mutant(NamedTuple):
    """One changed range of a source file."""

    path: Path  # relative to the checkout
    line: int
    start: int
    end: int
    new: str

    def describe(self, source: str) -> str:
        """Return the place and the change in one line."""
        old = source.splitlines()[self.line - 1].strip()
        return f"{self.path}:{self.line}: {old[:80]}  ->  {self.new[:40]}"


def main() -> int:
    """Run the sample and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="*", type=Path, default=[Path("unified_prof")])
    parser.add_argument("--sample", type=int, default=30, help="number of mutants")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--since", help="only lines changed since this revision")
    parser.add_argument("--files", type=int, default=12, help="test files per mutant")
    parser.add_argument("--at-least", type=float, default=85.0, help="percent to kill")
    options = parser.parse_args()
    found = list(mutants(options.paths, options.since))
    chosen = random.Random(options.seed).sample(found, min(options.sample, len(found)))
    print(f"{len(found):,} mutants, {len(chosen)} sampled with seed {options.seed}", flush=True)
    survivors = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "checkout"
        ignored = shutil.ignore_patterns(".git", ".venv", ".cache", "__pycache__", ".*_cache")
        shutil.copytree(ROOT, copy, ignore=ignored, symlinks=True)
        for mutant in chosen:
            source = (ROOT / mutant.path).read_text(encoding="utf-8")
            (copy / mutant.path).write_text(
                source[: mutant.start] + mutant.new + source[mutant.end :], encoding="utf-8"
            )
            killed = is_killed(copy, tests_near(mutant.path)[: options.files])
            (copy / mutant.path).write_text(source, encoding="utf-8")
            survivors += not killed
            verdict = "killed  " if killed else "SURVIVED"
            print(f"{verdict} {mutant.describe(source)}", flush=True)
    share = 100 * (1 - survivors / max(len(chosen), 1))
    print(f"{len(chosen) - survivors} of {len(chosen)} killed ({share:.0f} %)")
    return int(share < options.at_least)


def mutants(paths: list[Path], since: str | None) -> Iterator[Mutant]:
    """Yield all mutants of the modules below `paths`, without docstrings and annotations."""
    for top in paths:
        files = sorted((ROOT / top).rglob("*.py")) if (ROOT / top).is_dir() else [ROOT / top]
        for path in files:
            relative = path.relative_to(ROOT)
            lines = _changed_lines(relative, since) if since else None
            for mutant in _of_module(relative, path.read_text(encoding="utf-8")):
                if lines is None or mutant.line in lines:
                    yield mutant


def _changed_lines(path: Path, since: str) -> set[int]:
    command = ["git", "diff", "-U0", "-M", since, "--", str(path)]
    diff = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return {
        line
        for first, count in re.findall(r"^@@ -\S+ \+(\d+)(?:,(\d+))? @@", diff, re.MULTILINE)
        for line in range(int(first), int(first) + int(count or 1))
    }


def _of_module(path: Path, source: str) -> Iterator[Mutant]:
    if not source.isascii():  # Offsets of the parser count bytes.
        return
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def at(node: ast.AST) -> tuple[int, int]:
        return (
            starts[node.lineno - 1] + node.col_offset,  # type: ignore[attr-defined]
            starts[node.end_lineno - 1] + node.end_col_offset,  # type: ignore[attr-defined]
        )

    def operator(left: ast.AST, right: ast.AST, old: type[ast.AST]) -> Iterator[Mutant]:
        begin, end = at(left)[1], at(right)[0]
        pattern = rf"(?<![=<>!*/]){re.escape(SYMBOLS[old])}(?![=*/])"
        if (match := re.search(pattern, source[begin:end])) is not None:
            line = source.count("\n", 0, begin + match.start()) + 1
            start = begin + match.start()
            yield Mutant(path, line, start, begin + match.end(), SYMBOLS[SWAPS[old]])

    for node in _code(ast.parse(source)):
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in SWAPS:
            yield from operator(node.left, node.comparators[0], type(node.ops[0]))
        elif isinstance(node, ast.BinOp) and type(node.op) in SWAPS:
            if not any(isinstance(side, ast.JoinedStr) for side in (node.left, node.right)):
                yield from operator(node.left, node.right, type(node.op))
        elif isinstance(node, ast.BoolOp):
            yield from operator(node.values[0], node.values[1], type(node.op))
        elif isinstance(node, ast.Constant) and isinstance(node.value, int):
            value = not node.value if isinstance(node.value, bool) else int(node.value) + 1
            yield Mutant(path, node.lineno, *at(node), repr(value))
        elif isinstance(node, ast.If | ast.While | ast.IfExp):
            start, end = at(node.test)
            yield Mutant(path, node.test.lineno, start, end, f"not ({source[start:end]})")
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            yield Mutant(path, node.lineno, *at(node), "pass")


def _code(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a module that run: no docstrings, annotations or imports."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.Import | ast.ImportFrom | ast.JoinedStr):
            continue
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        if isinstance(child, ast.AnnAssign):
            if child.value is not None:
                yield child.value
                yield from _code(child.value)
            continue
        if isinstance(child, ast.arg):
            continue
        yield child
        yield from _code(child)


def tests_near(path: Path) -> list[Path]:
    """Return test files for a module: those that import it, then those of its package's tests."""
    module = ".".join(path.with_suffix("").parts)
    package, _, name = module.rpartition(".")
    direct = re.compile(rf"{re.escape(module)}\b|from {re.escape(package)} import [^\n]*\b{name}\b")
    texts = {
        file: file.read_text(encoding="utf-8")
        for file in sorted((ROOT / "tests").rglob("test_*.py"))
        if "wild" not in file.parts and "device" not in file.parts
    }
    first = [file for file, text in texts.items() if direct.search(text)]
    same = re.compile(rf"{re.escape(package)}\b")
    second = [file for file, text in texts.items() if file not in first and same.search(text)]
    parts = set(path.parts[1:-1])
    third = [
        file
        for file in texts
        if file not in first and file not in second and parts & set(file.parts)
    ]
    return [file.relative_to(ROOT) for file in (*first, *second, *third)]


def is_killed(copy: Path, tests: list[Path]) -> bool:
    """Return True if a test fails, or runs endlessly, in a copy of the checkout."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider"]
    try:
        done = subprocess.run(
            [*command, *map(str, tests)],
            cwd=copy,
            env={**os.environ, "PYTHONPATH": str(copy)},
            capture_output=True,
            timeout=TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return True
    return done.returncode not in (0, 5)


if __name__ == "__main__":
    sys.exit(main())
