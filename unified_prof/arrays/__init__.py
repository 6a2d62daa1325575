"""Columns of numbers: intervals, nesting, lookups; NumPy alone, for decoding and analysis alike."""
