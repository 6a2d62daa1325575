"""NumPy algorithms for columns: intervals, nesting, grouping, lookups and packing."""
