"""What `uprof run` shows at its end: text for people, JSON for programs."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unified_prof import streams
from unified_prof.cli.printing import WIPE
from unified_prof.plain import printable

if TYPE_CHECKING:
    from unified_prof.pipeline.run import RunResult


class RunEnd:
    """Tells what came of a run.

    Args:
        quiet: Whether nothing but what went wrong is said.
        json: Whether the result goes to stdout as one line, in place of the figures for people.
        top: Rows of the table of operations.
    """

    def __init__(self, *, quiet: bool, json: bool, top: int) -> None:
        self.quiet = quiet
        self.json = json
        self._top = top

    def written(self, files: Mapping[str, tuple[Path, ...]]) -> None:
        """All is measured and written, and the workload runs on."""
        if folders := sorted({str(path.parent) for paths in files.values() for path in paths}):
            where = printable(", ".join(folders))
            start = WIPE if streams.is_terminal() else ""  # of the line that shows progress
            line = f"uprof: all is measured, the reports are in {where}; the workload runs on"
            self._say(start + line)

    def _say(self, line: str) -> None:
        if not self.quiet:
            streams.tell(line)

    def ended(self, result: RunResult) -> None:
        """Show the result.

        Raises:
            OutputError: it was asked for as JSON, the workload did well, and stdout takes nothing.
        """
        rank = result.rank
        if rank is not None and rank.is_distributed:
            self._say(_line_of_rank(result))
        if rank is None or not rank.is_distributed or rank.number == 0:
            self._say_figures(result)
        if result.failure:
            streams.tell(f"uprof: {printable(result.failure)}")
        if self.json:
            try:
                streams.hand_over(json.dumps(as_json(result)))
            except Exception:
                if not result.exit_code:
                    raise

    def _say_figures(self, result: RunResult) -> None:
        if result.files and not self.quiet:
            from unified_prof.cli.printing import terminal
            from unified_prof.report import brief

            width, color = terminal(sys.stderr) if streams.is_terminal() else (None, False)
            text = brief.of_run(result.files, top=self._top, width=width, color=color)
            self._say(text.rstrip("\n"))


def as_json(result: RunResult) -> dict[str, Any]:
    """Return the result of a run as plain data; times in ms, sizes in bytes, unknown is None."""
    from unified_prof.pipeline.run_summary import summarize

    paths = [path for one in result.files.values() for path in one]
    summary = summarize(paths) if result.tracked is not None else None
    return {
        "backend": result.backend,
        "exit_code": result.exit_code,
        "directory": str(result.directory),
        "files": {report: [str(path) for path in paths] for report, paths in result.files.items()},
        "failure": result.failure,
        "summary": None if summary is None else asdict(summary),
    }


def _line_of_rank(result: RunResult) -> str:
    """Return one line about a rank among others: where it ran and what it left."""
    rank = result.rank
    assert rank is not None
    files = ", ".join(str(path) for paths in result.files.values() for path in paths)
    ended = f", exit code {result.exit_code}" if result.exit_code else ""
    line = f"rank {rank.number} of {rank.world_size} on {platform.node()}{ended}: "
    return f"uprof: {printable(line + (files or 'no report'))}"
