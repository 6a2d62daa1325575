"""Decoders: read the files of other profilers and return their data as columns."""
