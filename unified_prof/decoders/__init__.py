"""Raw files of other profilers to columns."""
