"""Training programs with planted faults on a simulated GPU, and what `uprof advise` finds in them.

Independent of `unified_prof.explain`: the true gain of a repair is the difference of two simulated
runs. `python -m tests.simulated` prints a row per program.
"""
