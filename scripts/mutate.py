"""Sample mutants of the package, run the quick tests of each, and list the survivors.

    pip install coverage
    python scripts/mutate.py --record [tests/...]  # lines of each quick test, in .cache/mutate
    python scripts/mutate.py --sample 100 [--seed 1] [--since REV] [unified_prof/cluster ...]
    python scripts/mutate.py --sample 40 --tests tests/cluster/test_matching.py [unified_prof/...]

A mutant is one changed expression: a comparison, an arithmetic or boolean operator, a constant, a
condition or a statement that is a call. `strict=` of `zip` is not changed (1 % of all mutants): it
asserts that lengths are equal, so no input of a correct program shows the difference. `1 << 20` is
changed once, because 2 << 20 is equal to 1 << 21, and `reshape(-1)` is not, because NumPy computes
any negative size. Changes of limits and sizes of blocks are included, although many are equivalent.
The share of survivors of 100 mutants has a standard error of 4 to 5 points.

Lines that processes run for a test count as the test's, unless a signal ends them.

Mutants are made in a copy of the checkout, without recordings beside it. For each, the quick
tests that run its line are run up to `--seconds` of CPU time, first those that cost little and run
few lines of other modules; the first failure that the unchanged checkout does not have kills the
mutant. `mutate_plugin.py` tests mutants in forks of a process that has collected all tests, so that
most take a second. `--tests` needs no record and collects only some tests, such as those of a
module. mutmut and cosmic-ray run the whole suite, or need a session per module, which takes days
for a package of this size.

The exit code is 1 if fewer than `--at-least` percent of the mutants are killed.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import json
import os
import random
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from statistics import mean
from typing import NamedTuple

import mutate_plugin

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / ".cache" / "mutate"
COSTS = RECORD / "costs.json"
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
GOLDENS_SHARE = 0.2  # Counts as the share of their lines that are of a mutant's module.
# Longest time of one test, and of the tests of one mutant: an endless loop counts as killed.
TEST_TIMEOUT_S = 60
TIMEOUT_S = 900


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
    parser.add_argument("paths", nargs="*", type=Path, help="modules, or tests to record again")
    parser.add_argument("--sample", type=int, default=30, help="number of mutants")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--since", help="only lines changed since this revision")
    parser.add_argument("--record", action="store_true", help="record what each quick test runs")
    parser.add_argument("--seconds", type=float, default=60.0, help="CPU time of tests per mutant")
    parser.add_argument(
        "--line", action="append", default=[], metavar="PATH:LINE", help="only mutants of this line"
    )
    parser.add_argument(
        "--tests", action="append", default=[], metavar="PATH", help="run all tests of these files"
    )
    parser.add_argument("--at-least", type=float, default=85.0, help="percent to kill")
    options = parser.parse_args()
    if options.record:
        return record(options.paths)
    paths = options.paths or [Path("unified_prof")]
    found = list(mutants(paths, options.since))
    if options.line:
        found = [mutant for mutant in found if f"{mutant.path}:{mutant.line}" in options.line]
    chosen = random.Random(options.seed).sample(found, min(options.sample, len(found)))
    print(f"{len(found):,} mutants, {len(chosen)} sampled with seed {options.seed}", flush=True)
    survivors, coverage = 0, None if options.tests else Coverage()
    with tempfile.TemporaryDirectory() as folder:
        checkout = Checkout(Path(folder), options.tests)
        for mutant in chosen:
            source = checkout.source(mutant.path)
            tests, how, at_import = [*checkout.collected], "of the files", False
            covering = tests
            if coverage is not None:
                covering, how = coverage.tests(mutant.path, mutant.line)
                covering = [test for test in covering if test in checkout.collected]
                costs_s = itertools.accumulate(coverage.costs_s[test] for test in covering)
                tests = [
                    test
                    for test, cost_s in zip(covering, costs_s, strict=True)
                    if cost_s <= options.seconds
                ]
                at_import = coverage.runs_at_import(mutant.path, mutant.line)
            killer = checkout.killer(mutant, tests, at_import=at_import) if tests else None
            survivors += killer is None
            verdict = "SURVIVED" if killer is None else "killed  "
            print(f"{verdict} {mutant.describe(source)}", flush=True)
            print(
                f"         {killer or f'{len(tests)} of {len(covering)} tests {how}'}", flush=True
            )
        checkout.close()
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
    skipped = [*getattr(tree, "decorator_list", []), getattr(tree, "returns", None)]
    for child in ast.iter_child_nodes(tree):
        if child in skipped:
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
        if isinstance(child, ast.keyword) and child.arg == "strict" and _is_zip(tree):
            continue
        if isinstance(tree, ast.BinOp) and child is tree.left and _is_power_of_two(tree):
            continue
        if isinstance(child, ast.UnaryOp) and ast.unparse(tree).rpartition("(")[0].endswith(
            ".reshape"
        ):
            continue
        yield child
        yield from _code(child)


def _is_power_of_two(node: ast.BinOp) -> bool:
    """Return True for `1 << 20`: a change of the 1 gives the same value as one of the 20."""
    return isinstance(node.op, ast.LShift) and ast.unparse(node).startswith("1 << ")


def _is_zip(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) == "zip"


class Coverage:
    """Which tests run a line, and the CPU time of each, as `--record` found."""

    def __init__(self) -> None:
        try:
            from coverage import CoverageData
        except ImportError:
            sys.exit("mutate.py needs coverage: pip install coverage")
        if not COSTS.is_file():
            sys.exit("no coverage is recorded: python scripts/mutate.py --record")
        records = json.loads(COSTS.read_text(encoding="utf-8"))
        self.costs_s: dict[str, float] = {test: cost for test, (cost, _) in records.items()}
        users: dict[str, list[str]] = defaultdict(list)
        for test, (_, fixtures) in records.items():
            for name in fixtures:
                users[name].append(test)
        self._users = users
        self._data = CoverageData(str(RECORD / "data"))
        self._data.read()
        self._lines: Counter[str] = Counter()  # of the package, for each test
        query = "SELECT context, numbits FROM line_bits JOIN context ON context.id = context_id"
        with closing(sqlite3.connect(RECORD / "data")) as database:
            for name, lines in database.execute(query):
                self._lines.update(
                    dict.fromkeys(self._of_context(name), int.from_bytes(lines).bit_count())
                )
        scopes = (
            name.partition(mutate_plugin.FIXTURE)[0]
            for name in self._data.measured_contexts()
            if mutate_plugin.FIXTURE in name
        )
        self._with_fixtures = {scope.partition("::")[0] for scope in scopes}
        self._tests: dict[Path, dict[int, set[str]]] = {}
        self._constants: list[tuple[Path, set[str], set[str]]] | None = None
        self._test_files: dict[str, list[str]] = defaultdict(list)

    def runs_at_import(self, path: Path, line: int) -> bool:
        """Return True if no test, or not only tests, run the line."""
        return "" in self._data.contexts_by_lineno(str(ROOT / path)).get(line, [""])

    def tests(self, path: Path, line: int) -> tuple[list[str], str]:
        """Return the tests that run a line, those likely to fail first, and how they run it.

        These are cheap, and a large share of the lines that they run is of the module. Goldens
        run most of the package, but compare all results. Tests of a file with shared fixtures stay
        together.

        A line that runs at import (a constant, a table, a default) is run by the tests that run
        the lines that name it or a constant that contains it, and by those whose file names it and
        its module. If no test runs the line in its own process: all of the module.
        """
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        lines, names = _statement(tree, line)
        found = set().union(*(self._of_module(path).get(number, ()) for number in lines))
        how = "of the line"
        if names:
            how = "of its names"
            names = self._with_containing_constants(path, names)
            pattern = re.compile(rf"\b(?:{'|'.join(map(re.escape, names))})\b")
            modules = [path]
            if not all(name.startswith("_") for name in names):
                modules = [file.relative_to(ROOT) for file in (ROOT / "unified_prof").rglob("*.py")]
            found |= set().union(*(self._that_match(module, pattern) for module in modules))
            found |= self._of_files_with(path.stem, pattern)
        if not found:
            found, how = set().union(*self._of_module(path).values()), "of the module"
        of_module = Counter(test for tests in self._of_module(path).values() for test in tests)

        def rank(test: str) -> float:
            share = max(of_module[test], 1) / max(self._lines[test], 1)
            share = max(share, GOLDENS_SHARE) if "golden" in test else share
            return (self.costs_s[test] + 0.01) / share  # Costs are rounded to 0.01 s.

        groups: dict[str, list[str]] = defaultdict(list)
        cases: Counter[str] = Counter()
        ranks: dict[str, float] = {}
        for test in sorted(found, key=lambda test: (rank(test), test)):
            file = test.partition("::")[0]
            groups[file if file in self._with_fixtures else test].append(test)
            cases[name := test.partition("[")[0]] += 1
            ranks[test] = rank(test) * cases[name]  # Cases of one test find similar faults.
        ordered = sorted(groups.values(), key=lambda tests: mean(map(ranks.__getitem__, tests)))
        return [test for tests in ordered for test in tests], how

    def _with_containing_constants(self, path: Path, names: set[str]) -> set[str]:
        """Return the names, and those of constants that contain them, such as a table of tables."""
        if self._constants is None:
            files = [file.relative_to(ROOT) for file in (ROOT / "unified_prof").rglob("*.py")]
            self._constants = [
                (file, _targets(node), {n.id for n in ast.walk(node) if isinstance(n, ast.Name)})
                for file in files
                for node in ast.parse((ROOT / file).read_text(encoding="utf-8")).body
                if isinstance(node, ast.Assign | ast.AnnAssign)
            ]
        known: set[str] = set()
        while known != names:
            known = names
            names = known.union(
                *(
                    targets
                    for file, targets, used in self._constants
                    if any(file == path or not name.startswith("_") for name in used & known)
                )
            )
        return names

    def _that_match(self, path: Path, pattern: re.Pattern[str]) -> set[str]:
        of_line = self._of_module(path)
        lines = (ROOT / path).read_text(encoding="utf-8").splitlines()
        return set().union(
            *(of_line.get(n, ()) for n, text in enumerate(lines, 1) if pattern.search(text))
        )

    def _of_files_with(self, module: str, pattern: re.Pattern[str]) -> set[str]:
        if not self._test_files:
            for test in self.costs_s:
                self._test_files[test.partition("::")[0]].append(test)
        found: set[str] = set()
        for file, tests in self._test_files.items():
            path = ROOT / file
            text = path.read_text(encoding="utf-8") if path.is_file() else ""
            if module in text and pattern.search(text):
                found.update(tests)
        return found

    def _of_module(self, path: Path) -> dict[int, set[str]]:
        if path not in self._tests:
            contexts = self._data.contexts_by_lineno(str(ROOT / path))
            self._tests[path] = {
                line: {test for name in names for test in self._of_context(name)}
                for line, names in contexts.items()
            }
        return self._tests[path]

    def _of_context(self, name: str) -> list[str]:
        if mutate_plugin.FIXTURE not in name:
            return [name] if name in self.costs_s else []
        scope, _, fixture = name.partition(mutate_plugin.FIXTURE)
        return [test for test in self._users[fixture] if test.startswith(scope)]


def _statement(tree: ast.Module, line: int) -> tuple[range, set[str]]:
    """Return the lines of the statement at `line`; the names it defines if it runs at import."""
    body: list[ast.stmt] = tree.body
    names: set[str] = set()
    in_function = False
    while True:
        node = next(node for node in body if _first_line(node) <= line <= (node.end_lineno or 0))
        inner = [
            child
            for field in ("body", "orelse", "finalbody", "handlers", "cases")
            for child in getattr(node, field, [])
        ]
        inner = [part for child in inner for part in _blocks(child)]
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if line < node.body[0].lineno:  # a default
                return range(node.body[0].lineno, (node.end_lineno or 0) + 1), set()
            in_function, names = True, set()
        elif isinstance(node, ast.ClassDef) and not in_function:
            names = {node.name}
        if not any(_first_line(child) <= line <= (child.end_lineno or 0) for child in inner):
            header_end = (
                min([child.lineno for child in inner if child.lineno > line], default=0) - 1
            )
            last = header_end if header_end >= line else node.end_lineno or line
            if not in_function:
                names = names or _targets(node)
            return range(_first_line(node), last + 1), names
        body = inner


def _blocks(child: ast.AST) -> list[ast.stmt]:
    return [child] if isinstance(child, ast.stmt) else child.body  # type: ignore[attr-defined]


def _first_line(node: ast.stmt) -> int:
    decorators = getattr(node, "decorator_list", [])
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def _targets(node: ast.stmt) -> set[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return {
        name.id
        for target in targets
        if target
        for name in ast.walk(target)
        if isinstance(name, ast.Name)
    }


class Checkout:
    """A copy of the checkout in which mutants are tested."""

    def __init__(self, folder: Path, tests: Sequence[str] = ()) -> None:
        self._folder = folder / "checkout"
        self._temporary = folder / "temporary"
        self._changed_s = int(time.time())
        self._failing: set[str] = set()  # tests that fail without a mutant
        ignored = shutil.ignore_patterns(".git", ".venv", ".cache", "__pycache__", ".*_cache")
        shutil.copytree(ROOT, self._folder, ignore=ignored, symlinks=True)
        read_requests, requests = os.pipe()
        answers, write_answers = os.pipe()
        self._env = {**os.environ, "PYTHONPATH": str(self._folder), "COLUMNS": "400"}
        self._server = subprocess.Popen(
            [*self._pytest(), "-p", "mutate_plugin", *tests],
            cwd=self._folder,
            env={
                **self._env,
                "PYTHONPATH": os.pathsep.join([str(self._folder), str(Path(__file__).parent)]),
                mutate_plugin.PIPES: f"{read_requests},{write_answers}",
            },
            stdout=subprocess.DEVNULL,
            pass_fds=(read_requests, write_answers),
        )
        os.close(read_requests)
        os.close(write_answers)
        self._requests = os.fdopen(requests, "w")
        self._answers = os.fdopen(answers)
        if not (collected := self._answers.readline()):
            sys.exit("pytest cannot collect the tests")
        # The copy lacks tests of recordings that are kept beside the checkout.
        self.collected = dict.fromkeys(json.loads(collected))

    def close(self) -> None:
        """End the process that has collected the tests."""
        self._requests.close()
        self._server.wait()

    def source(self, path: Path) -> str:
        """Return the source of a module without mutants."""
        return (self._folder / path).read_text(encoding="utf-8")

    def killer(self, mutant: Mutant, tests: list[str], *, at_import: bool) -> str | None:
        """Return the test that fails, or runs endlessly, only with the mutant; None: no test."""
        path = self._folder / mutant.path
        source = self.source(mutant.path)
        mutated = source[: mutant.start] + mutant.new + source[mutant.end :]
        while True:
            chosen = [test for test in tests if test in self.collected.keys() - self._failing]
            self._write(path, mutated)  # for processes that tests start
            try:
                failed = self._first_failure(chosen, path, source, mutated)
                if failed == mutate_plugin.IMPORTED or (failed is None and at_import):
                    failed = self._first_failure_of_new_process(chosen)
            finally:
                self._write(path, source)
            if failed not in chosen or self._first_failure([failed], path, source, source) is None:
                return failed
            self._failing.add(failed)

    def _write(self, path: Path, source: str) -> None:
        """Write a module; a new time of change, because Python keeps bytecode by it, in seconds."""
        path.write_text(source, encoding="utf-8")
        self._changed_s += 1
        os.utime(path, (self._changed_s, self._changed_s))

    def _first_failure(self, tests: list[str], path: Path, old: str, new: str) -> str | None:
        request = {"path": str(path), "old": old, "new": new, "tests": tests}
        request |= {"folder": str(self._temporary), "limit_s": TIMEOUT_S}
        print(json.dumps(request), file=self._requests, flush=True)
        answer = self._answers.readline()
        return json.loads(answer) if answer else sys.exit("pytest ended")

    def _first_failure_of_new_process(self, tests: list[str]) -> str | None:
        listed = self._folder.parent / "tests.txt"
        listed.write_text("\n".join(tests), encoding="utf-8")
        try:
            done = subprocess.run(
                [*self._pytest(), "-x", f"@{listed}"],
                cwd=self._folder,
                env=self._env,
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

    def _pytest(self) -> list[str]:
        command = [sys.executable, "-m", "pytest", "-n", "0", "-p", "no:cacheprovider"]
        return [*command, f"--timeout={TEST_TIMEOUT_S}"]


def record(paths: list[Path]) -> int:
    """Run the quick tests, or some of them again, and record which lines each runs."""
    if not paths:
        shutil.rmtree(RECORD, ignore_errors=True)
    RECORD.mkdir(parents=True, exist_ok=True)
    settings = RECORD / "rc"
    settings.write_text(
        f"[run]\nsource = unified_prof\ndata_file = {RECORD / 'data'}\nparallel = true\n"
        "patch = fork, _exit\nplugins = mutate_context\n",
        encoding="utf-8",
    )
    coverage = [sys.executable, "-m", "coverage"]
    command = [*coverage, "run", f"--rcfile={settings}", "-m", "pytest", "-n", "0"]
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [*command, "-p", "mutate_plugin", *map(str, paths)],
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": path,
            "COVERAGE_PROCESS_START": str(settings),  # also in processes that tests start
            mutate_plugin.COSTS: str(COSTS),
        },
    )
    command = [*coverage, "combine", "-q", "--append", f"--data-file={RECORD / 'data'}"]
    subprocess.run(command, cwd=ROOT, check=True)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
