"""Sample mutants of the package, run the nearest quick tests on each, and list the survivors.

    python scripts/mutate.py --sample 100 --since 466e6e4 [--seed 1] [unified_prof/cluster ...]

A mutant is one changed expression: a comparison, an arithmetic or boolean operator, a constant, a
condition or a statement that is a call. Mutants are made in a copy of the checkout. For each, the
`--files` test files that most likely run the line are run, without tests marked slow; the first
failure that the unchanged checkout does not have kills the mutant. mutmut and cosmic-ray run the
whole suite, or need a session per module, which takes days for a package of this size.

The exit code is 1 if fewer than `--at-least` percent of the mutants are killed.
"""

from __future__ import annotations

import argparse
import ast
import math
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
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
# Longest time of one test, and of the tests of one mutant: an endless loop counts as killed.
TEST_TIMEOUT_S = 120
TIMEOUT_S = 1800


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
    survivors, tests = 0, TestFiles()
    with tempfile.TemporaryDirectory() as folder:
        checkout = Checkout(Path(folder) / "checkout")
        for mutant in chosen:
            source = checkout.source(mutant.path)
            nearest = tests.near(mutant.path, mutant.line)[: options.files]
            killer = checkout.killer(mutant, nearest)
            survivors += killer is None
            verdict = "SURVIVED" if killer is None else "killed  "
            print(f"{verdict} {mutant.describe(source)}", flush=True)
            print(f"         {killer or ' '.join(map(str, nearest))}", flush=True)
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
    """Yield the nodes of a module that run: no docstrings, annotations, decorators or imports."""
    decorators = getattr(tree, "decorator_list", [])
    for child in ast.iter_child_nodes(tree):
        if child in decorators:
            continue
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


class TestFiles:
    """Test files by how likely they run a given line."""

    def __init__(self) -> None:
        self._texts = {
            file: file.read_text(encoding="utf-8")
            for file in sorted((ROOT / "tests").rglob("test_*.py"))
            if file.relative_to(ROOT).parts[1] not in ("device", "wild")
        }
        self._sources = {
            file.relative_to(ROOT): file.read_text(encoding="utf-8")
            for file in sorted((ROOT / "unified_prof").rglob("*.py"))
        }
        self._words = {file: _words(text) for file, text in self._texts.items()}
        count = Counter(word for words in self._words.values() for word in words)
        self._rarity = {word: math.log(len(self._texts) / n) for word, n in count.items()}

    def near(self, path: Path, line: int) -> list[Path]:
        """Return the test files, those that most likely run `line` of a module first.

        Most tests use a module through a package or a command, so that imports alone find few of
        them. Tests that import the module count most, then those that share rare words (names,
        tables, options, titles) with the function and with the module, then the tests of its
        package and of the modules that import it.
        """
        imports, (package, name) = _import_of(path), _module(path)
        imports_package = re.compile(rf"{re.escape(package)}\b")
        users = [file for file, text in self._sources.items() if imports.search(text)]
        imports_user = [_import_of(file) for file in users]
        user_names = {file.stem for file in users}
        source = self._sources[path]
        in_function = _words(_function_at(source, line))
        in_module = _words(source)
        folders = {part for part in (*path.parts[1:-1], *name.split("_")) if len(part) > 2}

        def score(file: Path) -> float:
            text, words = self._texts[file], self._words[file]
            parts = {*file.parts, *file.stem.split("_")}
            return (
                2 * bool(imports.search(text))
                + bool(imports_package.search(text)) / 2
                + any(pattern.search(text) for pattern in imports_user) / 2
                + 0.75 * len(folders & parts)
                + 0.75 * bool(user_names & {*parts, file.stem.removeprefix("test_")})
                + 4 * self._likeness(in_function, words)
                + 4 * self._likeness(in_module, words)
            )

        ranked = sorted(self._texts, key=score, reverse=True)
        return [file.relative_to(ROOT) for file in ranked]

    def _likeness(self, words: set[str], others: set[str]) -> float:
        shared = sum(self._rarity[word] for word in words & others)
        whole = sum(self._rarity.get(word, 0.0) for word in words)
        return shared / max(whole, 1.0)


def _module(path: Path) -> tuple[str, str]:
    """Return the package and the name of a module, such as `unified_prof.cli` and `run`."""
    package, _, name = (
        ".".join(path.with_suffix("").parts).removesuffix(".__init__").rpartition(".")
    )
    return package, name


def _import_of(path: Path) -> re.Pattern[str]:
    """Return a pattern that finds imports of a module."""
    package, name = map(re.escape, _module(path))
    return re.compile(rf"{package}\.{name}\b|from {package} import [^\n]*\b{name}\b")


def _words(text: str) -> set[str]:
    return set(re.findall(r"[a-z]\w{3,}", text.lower()))


def _function_at(source: str, line: int) -> str:
    """Return the innermost function or class around a line, or the line itself."""
    lines, span = source.splitlines(), (line, line)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            last = node.end_lineno or node.lineno
            if node.lineno <= line <= last and (span[0] == span[1] or node.lineno >= span[0]):
                span = (node.lineno, last)
    return "\n".join(lines[span[0] - 1 : span[1]])


class Checkout:
    """A copy of the checkout in which mutants are tested."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._failing: set[str] = set()  # tests that fail without a mutant
        ignored = shutil.ignore_patterns(".git", ".venv", ".cache", "__pycache__", ".*_cache")
        shutil.copytree(ROOT, folder, ignore=ignored, symlinks=True)

    def source(self, path: Path) -> str:
        """Return the source of a module without mutants."""
        return (self._folder / path).read_text(encoding="utf-8")

    def killer(self, mutant: Mutant, tests: list[Path]) -> str | None:
        """Return the test that fails, or runs endlessly, only with the mutant; None: no test."""
        path = self._folder / mutant.path
        source = self.source(mutant.path)
        mutated = source[: mutant.start] + mutant.new + source[mutant.end :]
        while True:
            path.write_text(mutated, encoding="utf-8")
            try:
                failed = self._first_failure([str(test) for test in tests])
            finally:
                path.write_text(source, encoding="utf-8")
            if failed is None or "::" not in failed or self._first_failure([failed]) is None:
                return failed
            self._failing.add(failed)

    def _first_failure(self, tests: list[str]) -> str | None:
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider"]
        command += [f"--timeout={TEST_TIMEOUT_S}"]
        command += [f"--deselect={test}" for test in self._failing]
        try:
            done = subprocess.run(
                [*command, *tests],
                cwd=self._folder,
                env={**os.environ, "PYTHONPATH": str(self._folder), "COLUMNS": "400"},
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
            )
        except subprocess.TimeoutExpired:
            return f"more than {TIMEOUT_S} s"
        if done.returncode in (0, 5):
            return None
        failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", done.stdout, re.MULTILINE)
        return failed[1] if failed else f"pytest exits with {done.returncode}"


if __name__ == "__main__":
    sys.exit(main())
