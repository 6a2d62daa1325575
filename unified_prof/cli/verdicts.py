"""Verdicts printed: by each format, and on the summary of a job."""

from __future__ import annotations

import os
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from unified_prof.cli import printing
from unified_prof.errors import OutputError

if TYPE_CHECKING:
    from unified_prof.analysis.compare.gate import Verdict
    from unified_prof.analysis.compare.workloads import Pairs, Verdicts


class FormatOption(str, Enum):
    """How a verdict is printed."""

    TEXT = "text"
    JSON = "json"
    MARKDOWN = "markdown"
    JUNIT = "junit"


SUFFIXES = {
    "text": (".txt",),
    "json": (".json",),
    "markdown": (".md", ".markdown"),
    "junit": (".xml",),
}


def append_summary(text: Callable[[], str]) -> None:
    """Append Markdown to the summary of a job on GitHub, where there is one.

    Raises:
        OutputError: it cannot be written.
    """
    if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
        _append(Path(summary), text())


def verdicts_text(
    verdicts: Verdicts, pairs: Pairs, shape: FormatOption, *, to_file: bool = False
) -> str:
    """Return the verdicts on several workloads in one of the formats."""
    from unified_prof.report import workloads as shown

    if shape is FormatOption.JSON:
        return printing.json_text(shown.document(verdicts, pairs))
    if shape is FormatOption.MARKDOWN:
        return shown.as_markdown(verdicts, pairs)
    if shape is FormatOption.JUNIT:
        return shown.junit(verdicts, pairs)
    width, color = (None, False) if to_file else printing.terminal()
    return shown.text(verdicts, width=width, color=color)


def verdict_text(
    verdict: Verdict, labels: tuple[str, str], shape: FormatOption, *, to_file: bool = False
) -> str:
    """Return the verdict on (base, new) in one of the formats."""
    from unified_prof.report import comparison

    if shape is FormatOption.JSON:
        return printing.json_text(comparison.gate_document(verdict, *labels))
    if shape is FormatOption.MARKDOWN:
        return comparison.gate_markdown(verdict, *labels)
    if shape is FormatOption.JUNIT:
        return comparison.gate_junit(verdict, *labels)
    width, color = (None, False) if to_file else printing.terminal()
    return comparison.gate_text(verdict, width=width, color=color)


def _append(path: Path, text: str) -> None:
    try:
        with path.open("a", encoding="utf-8") as summary:
            summary.write(text + "\n")
    except OSError as err:
        raise OutputError(
            f"GITHUB_STEP_SUMMARY {path} cannot be written: {err.strerror}", slug="cannot-write"
        ) from err
