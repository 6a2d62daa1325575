"""Tests of the device: those that have it run in processes of their own."""

# Its conftest gives the process a device for good, which the other tests must not have.
collect_ignore = ["on_bench"]
