"""Ask another program a short question."""

from __future__ import annotations

import subprocess

_TIMEOUT_S = 10


def answer_of(*command: str, any_status: bool = False) -> str | None:
    """Return what `command` prints, or None where it is missing, fails or takes too long.

    Args:
        command: Program and arguments.
        any_status: Whether an exit status other than 0 is no failure.
    """
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            check=not any_status,
            stdin=subprocess.DEVNULL,
            encoding="utf-8",
            errors="replace",
            timeout=_TIMEOUT_S,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
