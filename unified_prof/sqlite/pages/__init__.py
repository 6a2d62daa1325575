"""Pages of SQLite's table b-trees, written and read as arrays instead of row by row."""
