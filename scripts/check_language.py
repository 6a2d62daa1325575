"""List phrases and names that the project's style rules out, by file and line.

    python scripts/check_language.py [PATH ...]     # default: the package, docs, scripts and tests
    python scripts/check_language.py --count        # only the number per kind and top directory

Phrases are searched in docstrings, comments, string literals and Markdown; names among the names
that a module, class or function defines. The exit code is 1 if there are more findings than
`[tool.language] max_findings` of pyproject.toml allows.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
DEFAULT = ("unified_prof", "docs", "scripts", "README.md", "CONTRIBUTING.md", "SECURITY.md")

# Wording of the former private dialect; see "Language" in CONTRIBUTING.md.
PHRASES = tuple(
    re.compile(pattern)
    for pattern in (
        r"\b(?:is|are|was|were|be|been) told\b",
        r"\btold (?:of|apart|by|about|so|in|as|from|that)\b",
        r"\bto be told\b",
        r"\b(?:is|are|was|be) said of\b",
        r"\basked of\b",
        r"\b(?:is|are|was|were|be) asked for\b",
        r"\bstands? (?:alone|for itself|elsewhere|beside|beneath|there|in the way)\b",
        r"\bas (?:they are|it is) meant\b",
        r"\bthe like\b",
        r"\b[Nn]obody\b",
        r"\b[Ss]omebody\b",
        r"\bpeople (?:ask|know|look)\b",
        r"\bhow sure\b",
        r"\bruns? dry\b",
        r"\bat hand\b",
        r"\bof one's own\b",
        r"\bof its own\b",
        r"\bthat there (?:is|are)\b",
        r"^(?:Of|What|Whether)\b",
        r"^Who(?:se)?\b",
        r"\bto the letter\b",
        r"\brooms?\b",
        r"\bhouse\b",
        r"\bon its way\b",
        r"\bwhat is (?:known|told|asked|said|there|left|meant|wanted)\b",
        r"\bnot yet begun\b",
        r"\blaunch delay\b",
        r"\bmade of\b",
        r"\bwhatever (?:it|they|its|their)\b",
    )
)
# A line without any of these has none of the phrases.
PARTS = (
    "told|said of|asked |stand|meant|the like|obody|omebody|people|how sure|dry|at hand|one's own|"
    "its own|that there|Of|What|Who|letter|room|house|its way|what is|not yet begun|launch delay|"
    "made of|whatever"
).split("|")
assert all(any(part in one.pattern for part in PARTS) for one in PHRASES)
# The phrases in a line of Python, where a text begins after a quotation mark or "#".
IN_CODE = tuple(re.compile(re.sub(r"^\^", r"(?:^|[\"'#])\\W*", one.pattern)) for one in PHRASES)

# Definitions with these names say nothing to a reader who does not know the code.
NAMES = frozenset(
    """
    told asked known joined named whole together own mine one each alone beside least said meant
    wanted shown given found_by _told _asked _known _joined _named _whole _together _one _own _said
    _meant _wanted Told Asked Known Joined Named Whole Together Way Case Supposed Later thrift
    untouched oddities talk ground of _of
    """.split()
)


class Violation(NamedTuple):
    """A phrase or name that is ruled out."""

    path: Path
    line: int
    kind: str
    text: str


def main() -> int:
    """Print the findings and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="*", type=Path)
    parser.add_argument("--count", action="store_true", help="print numbers only")
    options = parser.parse_args()
    found = list(violations(options.paths or [ROOT / name for name in DEFAULT]))
    if options.count:
        counts = Counter((_group(one.path), one.kind) for one in found)
        for (group, kind), count in sorted(counts.items()):
            print(f"{count:6,}  {kind:7} {group}")
    else:
        for one in found:
            print(f"{_shown(one.path)}:{one.line}: {one.kind}: {one.text}")
    limit = max_findings()
    print(f"{len(found):,} findings, at most {limit:,} allowed")
    return int(len(found) > limit)


def max_findings() -> int:
    """Return the number of findings that pyproject.toml allows."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        return int(tomllib.load(file)["tool"]["language"]["max_findings"])


def violations(paths: list[Path]) -> Iterator[Violation]:
    """Yield the findings in files and directories, in the order of their names."""
    for path in paths:
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in files:
            if file.suffix == ".py":
                yield from _in_python(file)
            elif file.suffix == ".md" and file.name != "CHANGELOG.md":
                yield from _in_text(file, file.read_text(encoding="utf-8"), 1)


def _in_python(path: Path) -> Iterator[Violation]:
    source = path.read_text(encoding="utf-8")
    defined = re.findall(r"^ *(?:class|def) (\w+)", source, re.MULTILINE)
    if NAMES.isdisjoint(defined) and not any(map(_may_violate, source.splitlines())):
        return  # without parsing it
    if path.samefile(__file__):
        return
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.STRING:
            text = re.sub(r"^[a-zA-Z]*(?:\"\"\"|\"|''')|(?:\"\"\"|\"|''')$", "", token.string)
            yield from _in_text(path, text, token.start[0])
        elif token.type == tokenize.COMMENT:
            yield from _in_text(path, token.string.lstrip("# "), token.start[0])
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in NAMES:
            yield Violation(path, node.lineno, "name", node.name)


def _may_violate(line: str) -> bool:
    return any(part in line for part in PARTS) and any(one.search(line) for one in IN_CODE)


def _in_text(path: Path, text: str, first_line: int) -> Iterator[Violation]:
    for number, line in enumerate(text.splitlines()):
        for pattern in PHRASES:
            if (match := pattern.search(line.strip())) is not None:
                yield Violation(path, first_line + number, "phrase", match.group())


def _group(path: Path) -> str:
    parts = _shown(path).parts
    return "/".join(parts[:2]) if len(parts) > 2 else parts[0]


def _shown(path: Path) -> Path:
    path = path.resolve()
    return path.relative_to(ROOT) if path.is_relative_to(ROOT) else path


if __name__ == "__main__":
    sys.exit(main())
