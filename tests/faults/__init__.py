"""Commands that are killed or run out of resources leave complete files or none.

`commands` lists the commands, `kinds` the faults; `trial` runs one command with one fault and
checks what it leaves. `python -m tests.faults --trials 1000` prints a table of failures.
"""
