"""Numbers to text, JSON, Markdown, HTML and traces."""
