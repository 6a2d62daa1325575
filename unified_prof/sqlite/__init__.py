"""Writers and readers of report files, which convert between NumPy columns and SQLite tables."""
