"""Version of uprof; imports nothing."""

VERSION = "0.1.0"
