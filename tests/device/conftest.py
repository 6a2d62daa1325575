"""Tests on the test device run in separate processes."""

# Its conftest gives the process a device for good, which the other tests must not have.
collect_ignore = ["on_bench"]
