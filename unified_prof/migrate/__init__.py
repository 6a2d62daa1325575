"""Recognise any report file and bring older ones up to date."""
