"""Infrastructure that knows no profile: text, streams, signals, redaction, columns, run records."""
