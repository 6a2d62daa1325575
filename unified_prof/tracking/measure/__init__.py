"""What was seen, turned into the records of a report."""
