"""Check report files, and upgrade them to newer schema revisions."""
