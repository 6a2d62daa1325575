"""Columns to SQLite files and back: interning, writing, reading."""
