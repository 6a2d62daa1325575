"""A recording as it lies on disk: folders, slices, records, control files, dictionaries, clocks."""
