"""Command line: parse options, call one function, print its result."""
