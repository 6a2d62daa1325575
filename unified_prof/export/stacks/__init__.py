"""Weighted call stacks as files that tools for flame graphs read, a module a format."""
