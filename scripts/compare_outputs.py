"""Compare the outputs of this checkout with those of another revision.

    python scripts/compare_outputs.py --before REV [--inputs DIR ...] [--details FILE]

Both run the same commands on the same inputs: the small recordings and examples of this repository,
and all recordings and databases in the directories of `--inputs` (`.tar.xz` and `.xz` are
unpacked). The commands are import, report in every format and breakdown, trace, db current, check
and upgrade, then diff and gate of adjacent reports. REV creates the reports of the examples, and
both read them; the outputs of running an example are compared without times. Compares exit codes,
stdout, stderr and all written files, databases row by row. Ignores only what differs between any
two runs: time of day, elapsed seconds, directory, and uprof's version. The exit code is 1 if
anything differs.
"""

from __future__ import annotations

import argparse
import difflib
import json
import lzma
import re
import shutil
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from itertools import pairwise
from pathlib import Path

from checkouts import ROOT, environment, runnable_checkout

EXAMPLES = ("mlp.py", "train.py")
DATABASES = (".db", ".sqlite")
TRACES = (".json.gz", ".json")
RUN = ("--backend", "cpu", "--iterations", "4", "--warmup", "0", "--quiet")
OF_DATABASES = (
    *(("report", "IN", "--format", name) for name in ("text", "json", "csv", "markdown")),
    ("report", "IN", "-o", "page.html"),
    *(("report", "IN", "--by", name) for name in ("module", "line", "kernel", "stream", "step")),
    ("trace", "IN", "-o", "timeline.json"),
    ("trace", "IN", "-o", "timeline.perfetto-trace"),
    ("db", "current", "IN", "--json"),
    ("db", "check", "IN"),
    ("db", "check", "IN", "--json"),
    ("db", "upgrade", "IN", "-o", "upgraded.db", "--json"),
)
OF_REPORTS = tuple(words for words in OF_DATABASES if words[0] == "report")
OF_PAIRS = (
    *(("diff", "BASE", "NEW", "--format", name) for name in ("text", "json", "markdown")),
    ("diff", "BASE", "NEW", "--by", "line"),
    *(("gate", "BASE", "NEW", "--format", name) for name in ("text", "json", "markdown", "junit")),
)
_SECONDS = re.compile(
    r'(?<=seconds": )(?:\{[^{}]*\}|[\d.]+)|\b[Ii]n \d+\.\d+ s\b|CPU time \d+\.\d+ s: .*'
)

_NONE = "(there is none)"
_MOST_LINES = 50_000


# Runs commands one after the other, each in a forked process that has everything imported.
_WARM = """
import importlib, json, os, pkgutil, sys
import unified_prof
for found in pkgutil.walk_packages(unified_prof.__path__, "unified_prof."):
    # Callbacks for trainers import the trainers; commands do not use them.
    if not found.name.endswith("__main__") and ".integrations" not in found.name:
        importlib.import_module(found.name)
import sqlalchemy.orm, alembic.command, rich.console
from unified_prof.cli.app import main
assert unified_prof.__file__.startswith(os.environ["PYTHONPATH"]), unified_prof.__file__
for line in sys.stdin:
    words, folder, streams = json.loads(line)
    child = os.fork()
    if not child:
        os.chdir(folder)
        for number, name in enumerate(["/dev/null", *streams]):
            os.dup2(os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC), number)
        sys.argv = ["uprof", *words]
        code = 0
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
        finally:
            os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Side:
    """One of the two checkouts, and its working directory."""

    def __init__(self, code: Path, work: Path, codes: Sequence[Path]) -> None:
        self.code, self.work = code, work
        self._codes = codes
        work.mkdir()
        self._warm = subprocess.Popen(
            [sys.executable, "-c", _WARM],
            cwd=work,
            env=environment(code),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, words: Sequence[str], folder: Path) -> str:
        """Run one command in a directory; return its exit code, stdout and stderr as text."""
        streams = [self.work.parent / f"{self.work.name}.{name}" for name in ("out", "err")]
        assert self._warm.stdin is not None
        assert self._warm.stdout is not None
        task = [list(words), str(folder), list(map(str, streams))]
        self._warm.stdin.write(json.dumps(task) + "\n")
        self._warm.stdin.flush()
        code = self._warm.stdout.readline().strip()
        said = (path.read_text(encoding="utf-8", errors="replace") for path in streams)
        return "\n".join([f"exit code {code}", *said])

    def end(self) -> None:
        """End the process that runs the commands."""
        self._warm.communicate()

    def clean(self, text: str) -> str:
        """Replace what differs between any two runs."""
        # Directories of both sides, because both read files that one side wrote.
        text = re.sub(rf"{re.escape(str(self.work.parent))}/(before|after)\b", "<folder>", text)
        for code in self._codes:
            text = text.replace(str(code), "<code>")
        for day in {time.strftime("%Y-%m-%d", time.gmtime(at)) for at in (BEGAN, time.time())}:
            text = re.sub(rf"{day}[T ][\d:.]+(Z|\+00:00)?", "<now>", text)
        return _SECONDS.sub("<seconds>", text)


BEGAN = time.time()


def inputs_below(folder: Path, unpacked: Path) -> Iterator[Path]:
    """Yield the recordings and databases in a directory; archives are unpacked."""
    for number, archive in enumerate(sorted(folder.rglob("*.xz"))):
        place = unpacked / f"{folder.name}-{number}"
        place.mkdir()
        if archive.name.endswith(".tar.xz"):
            with tarfile.open(archive) as packed:
                packed.extractall(place, filter="data")
        elif archive.stem.endswith(DATABASES):
            (place / archive.stem).write_bytes(lzma.decompress(archive.read_bytes()))
        yield from _found(place)
    yield from _found(folder)


def _found(folder: Path) -> Iterator[Path]:
    recordings = [path for path in folder.rglob("PROF_*") if path.is_dir()]
    yield from sorted(recordings)
    for path in sorted(folder.rglob("*")):
        inside = any(recording in path.parents for recording in recordings)
        if path.is_file() and not inside and path.name.endswith((*DATABASES, *TRACES)):
            yield path


def outputs_of(side: Side, source: Path, number: int) -> dict[str, str]:
    """Return the outputs of all commands on one input: command or file -> text."""
    folder = side.work / f"{number:03}"
    folder.mkdir()
    given = folder / source.name
    (shutil.copytree if source.is_dir() else shutil.copy)(source, given)
    found, report = {}, source.name
    if not source.name.endswith(DATABASES) and source.name != "report":
        report = "made.db"
        name = "build" if source.is_dir() else "import"
        found[name] = side.run((name, source.name, "-o", report, "--json"), folder)
    if (folder / report).exists():
        of_kind = OF_REPORTS if source.name == "report" else OF_DATABASES
        for words in of_kind:
            found[" ".join(words)] = side.run([report if w == "IN" else w for w in words], folder)
    return _cleaned(side, found | _files(folder, given))


def _report(folder: Path, source: Path) -> Path:
    """Return the report of an input: the input itself, or the one made from it."""
    made = folder / "made.db"
    return made if made.exists() else folder / source.name


def outputs_of_pair(side: Side, base: Path, new: Path) -> dict[str, str]:
    """Return the outputs of diff and gate for two reports of this side."""
    places = {"BASE": str(base), "NEW": str(new)}
    folder = side.work
    return _cleaned(
        side, {" ".join(w): side.run([places.get(one, one) for one in w], folder) for w in OF_PAIRS}
    )


def outputs_of_example(side: Side, name: str) -> dict[str, str]:
    """Run an example twice and return the files of the first run, without measured values."""
    texts = {}
    for number in "21":
        folder = side.work / f"{name}-{number}"
        folder.mkdir()
        target = str(side.code / "examples" / name)
        said = side.run(("run", *RUN, "-o", "report", target), folder)
        texts = _cleaned(side, {"run": said} | _files(folder, None, measured=True))
    measured = re.compile(r"\d+\.\d+(e-?\d+)?")
    return {what: measured.sub("<real>", text) for what, text in texts.items()}


def _cleaned(side: Side, found: dict[str, str]) -> dict[str, str]:
    return {what: side.clean(text) for what, text in found.items()}


def _files(folder: Path, given: Path | None, *, measured: bool = False) -> dict[str, str]:
    """Return the texts of all files in a directory except the given one."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_dir() or (given is not None and (path == given or given in path.parents)):
            continue
        content = path.read_bytes()
        if content.startswith(b"SQLite format 3\0"):
            text = dumped(path, measured=measured)
        else:
            text = content.decode("utf-8", "backslashreplace")
        found[f"file {path.relative_to(folder)}"] = text
    return found


def dumped(path: Path, *, measured: bool = False) -> str:
    """Return a database as text, one row per line in the order of the file."""
    lines = []
    with closing(sqlite3.connect(path)) as db:
        db.text_factory = lambda text: text.decode("utf-8", "backslashreplace")
        for kind, name, sql in db.execute(
            "SELECT type, name, sql FROM sqlite_master ORDER BY name"
        ):
            lines.append(f"{kind} {name}: {sql}")
            if kind != "table":
                continue
            for row in db.execute(f'SELECT * FROM "{name}"'):
                if measured and name == "UPROF_RUN":
                    row = row[:1]  # without facts of the run, such as the load of the machine
                lines.append(f"{name}{row}")
    return "\n".join(lines)


def main() -> int:
    """Compare, print the differences and their number, and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--before", required=True, metavar="REV")
    parser.add_argument("--inputs", type=Path, action="append", default=[ROOT / "tests" / "data"])
    parser.add_argument("--details", type=Path, help="file for complete differences")
    parser.add_argument(
        "--show", type=int, default=6, metavar="N", help="lines to print per output"
    )
    options = parser.parse_args()
    with (
        runnable_checkout(options.before) as code,
        tempfile.TemporaryDirectory(prefix="uprof-compare-") as temporary,
        ThreadPoolExecutor(2) as pool,
    ):
        folder = Path(temporary)
        (folder / "unpacked").mkdir()
        codes = code, ROOT
        sides = Side(code, folder / "before", codes), Side(ROOT, folder / "after", codes)
        tally = Tally(options.show, options.details)

        def both(name: str, work: Callable[[Side], dict[str, str]]) -> None:
            before, after = pool.map(work, sides)
            for what in dict.fromkeys([*before, *after]):
                tally.add(name, what, before.get(what, _NONE), after.get(what, _NONE))

        inputs = []
        for example in EXAMPLES:
            both(example, partial(outputs_of_example, name=example))
            inputs += [sides[0].work / f"{example}-{number}" / "report" for number in "12"]
        for below in options.inputs:
            inputs += inputs_below(below.resolve(), folder / "unpacked")
        for number, path in enumerate(inputs):
            name = f"{number:03} {path.parent.name}/{path.name}"
            both(name, partial(outputs_of, source=path, number=number))
        reports = [_report(sides[0].work / f"{n:03}", path) for n, path in enumerate(inputs)]
        for (first, base), (second, new) in pairwise(zip(inputs, reports, strict=True)):
            if first.parent == second.parent or "report" in (first.name, second.name):
                base, new = (one.relative_to(sides[0].work) for one in (base, new))
                both(f"{base} and {new}", partial(outputs_of_pair, base=base, new=new))
        for side in sides:
            side.end()
    return tally.end()


class Tally:
    """Prints differences as they are found, and counts them."""

    def __init__(self, show: int, details: Path | None) -> None:
        self._show, self._details = show, details
        self._compared = 0
        self._differ: Counter[str] = Counter()
        if details is not None:
            details.write_text("", encoding="utf-8")

    def add(self, name: str, what: str, before: str, after: str) -> None:
        """Compare two texts."""
        self._compared += 1
        if before == after:
            return
        self._differ[what] += 1
        changed = [f"== {name}: {what}", *(line[:1000] for line in _changes(before, after))]
        print(*(line[:300] for line in changed[: self._show + 1]), sep="\n", flush=True)
        if self._details is not None:
            with self._details.open("a", encoding="utf-8") as file:
                file.write("\n".join(changed) + "\n")

    def end(self) -> int:
        """Print how many outputs differ; return 1 if there are any."""
        print(f"{self._compared} outputs compared, {self._differ.total()} differ")
        for what, count in self._differ.most_common():
            print(f"{count:6} {what}")
        return 1 if self._differ else 0


def _changes(before: str, after: str) -> Iterator[str]:
    old, new = before.splitlines(), after.splitlines()
    if len(old) + len(new) > _MOST_LINES:  # a diff in order takes too long
        gone, come = Counter(old) - Counter(new), Counter(new) - Counter(old)
        yield from (f"-{line}" for line in gone)
        yield from (f"+{line}" for line in come)
        return
    for line in difflib.unified_diff(old, new, n=0, lineterm=""):
        if not line.startswith(("---", "+++", "@@")):
            yield line


if __name__ == "__main__":
    sys.exit(main())
