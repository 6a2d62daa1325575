"""Lets signals, and a limit, end a statement of SQLite's that runs long.

SQLite runs a whole statement before Python sees a signal, and its driver loses an exception that
is raised while it looks: the statement fails as `interrupted`, as if the file were to blame. So
what came is kept here, and whoever puts SQLite's words into errors raises it instead.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Generator

_STEPS_BETWEEN_LOOKS = 200_000  # of SQLite's machine: a few milliseconds

_kept: list[BaseException] = []


def watch(db: sqlite3.Connection, *, steps: int | None = None) -> None:
    """Let signals stop the statements of a connection, which run to their end otherwise.

    Args:
        db: The connection.
        steps: After how many steps of SQLite's machine, some 50 million a second, statements are
            stopped in any case; counted over all of them until `watch` is called again.
    """
    looks = _looks(None if steps is None else steps // _STEPS_BETWEEN_LOOKS)
    next(looks)
    db.set_progress_handler(looks.__next__, _STEPS_BETWEEN_LOOKS)


def raise_kept() -> None:
    """Raise, once, what a signal raised while SQLite was at work; else do nothing."""
    if _kept:
        raise _kept.pop()


def _looks(most: int | None) -> Generator[int, None, None]:
    """Yield 0 as long as SQLite may go on, 1 when it shall stop.

    A generator, so that a signal's exception, which comes as it is resumed, comes inside `try`.
    """
    count = 0
    while True:
        try:
            yield 1 if _kept or (most is not None and count > most) else 0
            count += 1
        except GeneratorExit:
            return
        except BaseException as err:
            _kept.append(err)
