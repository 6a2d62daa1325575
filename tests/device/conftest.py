"""Tests on the test device run in separate processes."""

# Its conftest installs a device for the whole process, which other tests must not have.
collect_ignore = ["on_bench"]
