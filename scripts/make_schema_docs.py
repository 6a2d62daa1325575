"""Print the reference of the msprof schema, or write docs/glossary.md from its table.

python scripts/make_schema_docs.py > msprof.md    the page of the site, as Markdown
python scripts/make_schema_docs.py --glossary     write docs/glossary.md
"""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy import Column

from unified_prof.migrate import runner
from unified_prof.report import glossary
from unified_prof.schema import catalogue
from unified_prof.schema.msprof import MODELS, MsprofBase, since

DOCS = Path(__file__).resolve().parent.parent / "docs"
INTRODUCTION = """\
# The msprof database

One SQLite file per recording. Times are Unix time in ns, memory in bytes, bandwidth in bytes/s,
frequency in MHz. Strings are stored once, in STRING_IDS, and referenced by id. Most tables exist
only if they have rows. No column is NOT NULL and there are no foreign keys; references are listed
here.

Under `meaning`, parentheses contain the unit, `->` names the referenced column, and `since` the
revision that introduced the column under this name.

In Python, the attribute of a model is the column name in snake case: `globalTid` is `global_tid`. A
column that references STRING_IDS or an ENUM table is `op_name_id`; `op_name` returns the string.
`PytorchApi.startNs` and `endNs` are text: `start_ns_text`, `end_ns_text`.

## Revisions

META_DATA.SCHEMA_VERSION does not identify the revision; `uprof db info FILE` does.

"""


def page() -> str:
    """Return the whole page."""
    lines = [INTRODUCTION, "| revision | SCHEMA_VERSION | what changed |\n|---|---|---|\n"]
    for revision, text in runner.history(catalogue.MSPROF):
        version = catalogue.load(catalogue.MSPROF, revision).schema_version or "none"
        change = text.partition("\n")[0].replace("<", "&lt;")
        lines.append(f"| {revision} | {version} | {change} |\n")
    lines.append("\n## Tables of msprof\n")
    for name in catalogue.outline("latest").columns:
        lines += _table(MODELS[name])
    lines.append("\n## Tables that torch_npu appends\n")
    for name in filter(MODELS.get, catalogue.extension_tables()):
        lines += _table(MODELS[name])
    return "".join(lines)


def _table(model: type[MsprofBase]) -> Iterator[str]:
    table = MsprofBase.metadata.tables[model.__tablename__]
    yield f"\n### {table.name}\n\n"
    yield f"{inspect.getdoc(model)}\n\n"
    brought = _since(table.name, next(iter(_columns(model))).name)
    also = f" Since {brought}." if brought else ""
    yield f"Written: {table.info['written']}. Model: `{model.__name__}`.{also}\n\n"
    for index in sorted(table.indexes, key=lambda index: str(index.name)):
        columns = ", ".join(column.name for column in index.columns)
        yield f"Index: `{index.name}` on ({columns}).\n\n"
    yield "| column | type | meaning |\n|---|---|---|\n"
    for column in _columns(model):
        kind = f"{column.type.compile()}{' PRIMARY KEY' if column.primary_key else ''}"
        meaning = str(column.doc)
        if unit := column.info["unit"]:
            meaning += f" ({unit.replace('ns since 1970', 'ns')})"
        if column.info["refers"]:
            meaning += f" -> {column.info['refers']}"
        if (added := _since(table.name, column.name)) not in ("", brought):
            meaning += f"; since {added}"
        yield f"| {column.name} | {kind} | {meaning} |\n"
    newest = catalogue.load(catalogue.MSPROF, "latest")
    if table.name in newest.enum_tables:
        rows = "; ".join(f"{number} {name}" for number, name in newest.rows[table.name])
        yield f"\nContents: {rows}.\n"


def _columns(model: type[MsprofBase]) -> list[Column[object]]:
    return [
        column for column in MsprofBase.metadata.tables[model.__tablename__].c if not column.system
    ]


def _since(table: str, column: str) -> str:
    found = since(table, column)
    return "" if found in (None, catalogue.REVISIONS[catalogue.MSPROF][0]) else str(found)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--glossary", action="store_true", help="write docs/glossary.md")
    if parser.parse_args().glossary:
        (DOCS / "glossary.md").write_text(glossary.markdown(), encoding="utf-8")
    else:
        print(page(), end="")


if __name__ == "__main__":
    main()
