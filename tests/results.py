"""Whole results of tests, compared with the texts in `tests/data/results`.

A test looks at the figures that it is about; `same` compares all others with those of the stored
text. After an intended change, `python -m tests.results [tests/FILE.py...]` runs the tests of these
files, or of all that have a text, and rewrites the texts.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from difflib import unified_diff
from functools import cache, wraps
from pathlib import Path
from typing import Any, TypeVar, cast
from zlib import crc32

import hypothesis
import numpy as np
import pytest

from tests.texts import json_lines, rounded

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "tests" / "data" / "results"
OF_RULES = ("judged", "not_judged")  # Every new rule extends them.
NO_VALUE: tuple[Any, ...] = (None, [], {}, "")
# Longer lists and texts are stored as their first items, length and checksum.
MAX_ITEMS, MAX_NUMBERS, MAX_LINES = 12, 48, 60
PATH = re.compile(r"(?<![\w/.])(?:/[\w.@\\-]+)+/")
Result = TypeVar("Result")
Function = TypeVar("Function", bound=Callable[..., Any])

rewritten: dict[str, dict[str, str]] | None = None  # Not None: results are not compared.
_number = 0  # of the result in the running test; negative: they are not compared.


def begin(item: pytest.Item) -> None:
    """Begin a test. Slow ones, and those of recordings kept elsewhere, have no stored results."""
    global _number
    is_compared = "shared" not in getattr(item, "fixturenames", ()) and not any(
        map(item.get_closest_marker, ("slow", "clients", "timing"))
    )
    _number = 0 if is_compared else -(1 << 62)


def same(result: Result, shown: object = None) -> Result:
    """Compare a result, or what is shown of it, with the stored one, and return it."""
    global _number
    test, _, phase = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")
    if phase != "(call)" or _number < 0 or hypothesis.currently_in_test_context():
        return result
    _number += 1
    file, _, name = test.partition("::")
    lines = json_lines(plain(result if shown is None else shown))
    text = "\n".join(first_lines("\n".join(lines)))
    if rewritten is not None:
        rewritten.setdefault(file, {})[f"# {name} #{_number}"] = text
    else:
        known = stored(file).get(f"# {name} #{_number}", "nothing")
        if text != known:
            changes = unified_diff(known.splitlines(), text.splitlines(), lineterm="", n=0)
            pytest.fail("\n".join([f"`python -m tests.results {file}` rewrites this", *changes]))
    return result


@cache
def stored(file: str) -> dict[str, str]:
    """Return the results of a file by test and number; equal results are stored once."""
    result: dict[str, str] = {}
    path = text_of(file)
    for part in path.read_text(encoding="utf-8").split("\n\n") if path.is_file() else ():
        lines = part.rstrip("\n").split("\n")
        names = [line for line in lines if line.startswith("# ")]
        result |= dict.fromkeys(names, "\n".join(lines[len(names) :]))
    return result


def text_of(file: str) -> Path:
    """Return the text of a file of tests."""
    return FOLDER / Path(file).relative_to("tests").with_suffix(".txt")


def plain(value: Any) -> Any:
    """Return a value as JSON, without fields that have no value."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    elif hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        found = {str(key): plain(one) for key, one in value.items() if key not in OF_RULES}
        return {key: one for key, one in found.items() if one not in NO_VALUE and one is not False}
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, float):
        return rounded(repr(value)) if np.isfinite(value) else str(value)
    if isinstance(value, str):
        return lines_of(value) if "\n" in value else PATH.sub("DIR/", value)
    if isinstance(value, list | tuple | set | frozenset):
        items = sorted(value, key=str) if isinstance(value, set | frozenset) else [*value]
        most = MAX_NUMBERS if is_numeric(items) else MAX_ITEMS
        return [plain(one) for one in items] if len(items) <= most else shortened(items)
    return value if isinstance(value, str | int | None) else type(value).__name__


def lines_of(text: str) -> Any:
    """Return JSON as a value, and other text as lines; pages have scripts and styles."""
    if text.startswith("<!doctype"):
        return "PAGE"
    try:
        return plain(json.loads(text))
    except ValueError:
        text = re.sub(r"\n *skipped[: ].*", "", re.sub(r"\(\d+ rules\)", "(N rules)", text))
        # Paths are of different lengths, and texts wrapped.
        parts = ["PATH" if PATH.search(part) else part for part in text.split("\n\n")]
        return first_lines("\n\n".join(parts))


def first_lines(text: str) -> list[str]:
    """Return the first lines of a text, and a checksum of the others."""
    lines = text.splitlines()
    rest = "\n".join(lines[MAX_LINES:])
    return [*lines[:MAX_LINES], *([f"... {crc32(rest.encode())}"] if rest else [])]


def is_numeric(items: list[Any]) -> bool:
    """Return True if all items are numbers or None."""
    return all(isinstance(one, int | float | None) for one in items)


def shortened(items: list[Any]) -> list[Any]:
    """Return the first items of a long list, its length, and what any change of it changes."""
    if is_numeric(items) and any(isinstance(one, float) for one in items):
        numbers = np.nan_to_num(np.array(items, float))
        sums = float(numbers.sum()), float((numbers * np.arange(len(numbers))).sum())
        return [*items[:3], {"length": len(items), "sums": [f"{one:.8g}" for one in sums]}]
    texts = ["\n".join(json_lines(plain(one))) for one in items]
    first = [plain(one) for one in items[:3]]
    return [*first, {"length": len(items), "checksum": crc32("\n".join(texts).encode())}]


def compared(function: Function) -> Function:
    """Return a function whose results are compared."""

    @wraps(function)
    def wrapper(*arguments: Any, **options: Any) -> Any:
        return same(function(*arguments, **options))

    return cast(Function, wrapper)


def main() -> None:
    """Rewrite the texts of files of tests."""
    global rewritten
    texts = [path.relative_to(FOLDER).with_suffix(".py") for path in FOLDER.rglob("*.txt")]
    files = sys.argv[1:] or [str(Path("tests", path)) for path in sorted(texts)]
    rewritten = {}
    code = pytest.main(["-n", "0", *files])
    for file, results in rewritten.items():
        by_text: dict[str, list[str]] = {}
        for name, text in results.items():
            by_text.setdefault(text, []).append(name)
        parts = ["\n".join([*names, text]) for text, names in by_text.items()]
        text_of(file).parent.mkdir(parents=True, exist_ok=True)
        text_of(file).write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    sys.exit(code)


if __name__ == "__main__":
    from tests import results  # Tests import this module by its name.

    results.main()
