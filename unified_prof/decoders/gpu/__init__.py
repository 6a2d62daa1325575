"""Common part of GPU recordings of all profilers: rows by kind, their joining, and the tables.

A decoder fills the spools of `rows.Parts`; `task_tables.write` joins host and device and writes the
tables. Only the decoder knows the format of a file.
"""
