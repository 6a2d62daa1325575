"""Code shared by the decoders of GPU recordings: collects rows, joins them, writes the tables.

A decoder fills the spools of `rows.Parts`; `task_tables.write` joins host and device rows and
writes the tables. Nothing here depends on a file format.
"""
