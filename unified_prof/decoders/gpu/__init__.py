"""What recordings of GPUs become, whichever profiler made them: rows put away, joined, written.

A decoder fills the spools of `parts.Parts`; `tables.write` joins host and device and writes the
tables. What is in a file, and in which words, is known to the decoder alone.
"""
