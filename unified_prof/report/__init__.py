"""Rendering of figures as text, JSON, CSV, Markdown, HTML, Parquet, Arrow and traces."""
