"""What was read, by operation, by moment, by device: what reports show."""
