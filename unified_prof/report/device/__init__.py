"""Two runs of devices compared, as text, JSON, CSV, Markdown and a page."""
