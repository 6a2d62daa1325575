"""Live view of a watched run, from its files: in another terminal, or below a script.

    python -m unified_prof.cli.watch_live DIR

draws on the lowest lines of the terminal at stderr while its parent process runs. A separate
process takes no time from the script, and restores the terminal if the script is killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.text import Text

from unified_prof.cli import output as printing
from unified_prof.errors import StoreError
from unified_prof.report.terminal import render_text
from unified_prof.report.watch_document import RECENT_STEPS, live_document, run_figures
from unified_prof.sqlite.watch_file import RankSteps, read_folder

_INTERVAL_S = 1.0
_LINES = 12  # Lines below a script; at most half of the terminal.


def _updates(folder: Path) -> Iterator[dict[int, RankSteps]]:
    """Yield the steps so far, at intervals until the run ends."""
    ranks = read_folder(folder)
    while True:
        yield ranks
        if not any(one.is_running for one in ranks.values()):
            return
        time.sleep(_INTERVAL_S)
        with suppress(StoreError):  # a file is being rotated
            ranks = read_folder(folder, ranks)


def attach(folder: Path) -> None:
    """Show a run until it ends or the user interrupts; without a terminal, one line per interval.

    Raises:
        StoreError: The directory has no watch files, or they cannot be read.
    """
    (width, color), shown = printing.terminal(), -1
    with suppress(KeyboardInterrupt):
        if width is not None:
            with Live(console=Console(file=sys.stdout), auto_refresh=False) as screen:
                for ranks in _updates(folder):
                    text = render_text(live_document(ranks, folder), width=width, color=color)
                    screen.update(Text.from_ansi(text), refresh=True)
            return
        for ranks in _updates(folder):
            steps = max(len(one) for one in ranks.values())
            if steps != shown:
                headline = run_figures(ranks, folder, recent=RECENT_STEPS).headline
                printing.put(f"step {steps:,}: {headline}\n")
            shown = steps


@contextmanager
def below(folder: Path) -> Iterator[None]:
    """Show the run of this process on the lowest lines of the terminal within the block."""
    child = subprocess.Popen(
        [sys.executable, "-m", __name__, str(folder.absolute())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        cwd=Path(sys.executable).parent,  # modules in the script's directory are not imported
    )
    try:
        yield
    finally:
        child.terminate()
        child.wait()


def _draw_below(folder: Path) -> None:
    """Draw on the lowest lines, above which all other output scrolls, until terminated."""
    parent, size, first = os.getppid(), None, 0
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the script decides what Ctrl-C does
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    try:
        while os.getppid() == parent:
            time.sleep(_INTERVAL_S)
            with suppress(StoreError):  # no file yet, or it is being rotated
                ranks = read_folder(folder)
                if all(one.facts.get("pid") != str(parent) for one in ranks.values()):
                    continue  # files of an earlier run
                text = render_text(
                    live_document(ranks, folder), width=printing.terminal(sys.stderr)[0]
                )
                before, size = size, os.get_terminal_size(2)
                height = min(_LINES, size.lines // 2)
                drawn, last = "", size.lines - height
                if size != before:  # free lines below the cursor, and limit scrolling to the rest
                    first = last + 1
                    drawn = "\x1bD" * height + f"\x1b[{height}A\x1b7\x1b[1;{last}r\x1b8"
                lines = [*text.splitlines(), *[""] * height][:height]
                drawn += "\x1b7" + "".join(
                    f"\x1b[{first + place};1H\x1b[2K{line}" for place, line in enumerate(lines)
                )
                os.write(2, f"{drawn}\x1b8".encode())  # one write does not mix with the script's
    finally:
        if first:
            os.write(2, f"\x1b7\x1b[r\x1b[{first};1H\x1b[J\x1b8".encode())


if __name__ == "__main__":
    _draw_below(Path(sys.argv[1]))
