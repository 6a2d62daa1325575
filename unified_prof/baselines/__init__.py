"""Runs kept under a name, to compare later ones with: rows, documents, schema, the whole job."""
