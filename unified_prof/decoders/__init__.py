"""Decoders: read the files of other profilers and return their data as columns.

Functions that read files raise RawFormatError if a file cannot be read or lacks a column.
"""
