"""Ask another program a short question."""

from __future__ import annotations

import subprocess

_TIMEOUT_S = 10


def answer_of(*command: str) -> str | None:
    """Return what `command` prints, or None where it is missing, fails or takes too long."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            check=True,
            stdin=subprocess.DEVNULL,
            encoding="utf-8",
            errors="replace",
            timeout=_TIMEOUT_S,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
