"""Writes docs/schema/kineto-mapping.md from the mapping that the decoder declares."""

from __future__ import annotations

from pathlib import Path

from unified_prof.decoders.kineto.mapping import as_markdown

TARGET = Path(__file__).resolve().parent.parent / "docs" / "schema" / "kineto-mapping.md"

if __name__ == "__main__":
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    TARGET.write_text(as_markdown(), encoding="utf-8")
