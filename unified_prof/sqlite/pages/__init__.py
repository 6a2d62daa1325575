"""Vectorized reading and writing of SQLite's b-tree pages."""
