"""What a recording says beyond its tables; each module is a function of `recording.Recording`."""
