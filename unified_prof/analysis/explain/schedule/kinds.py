"""What the time between two moments of a schedule is: the kinds of its edges."""

from __future__ import annotations

(
    HOST,
    SYNCHRONISING,
    QUEUE,
    HANDED,
    LAUNCH,
    STREAM,
    EVENT,
    SEEN,
    DONE,
) = range(9)
"""In this order: a thread's own work; a call that waits, and its return; from putting something
into a queue to its being taken out; from one thread's end to another one's begin; from a launching
call to the work; from one piece of work to the next on its stream; from work to what waited for it
by an event; the same where no event was recorded but only the times say so; the end of a step."""
