"""Export of reports as files for other tools."""
