"""A run of many ranks, as text, JSON, CSV, Markdown and a page."""
