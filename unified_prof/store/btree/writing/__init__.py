"""Rows to pages: the way from columns of numbers and texts to a table in a file."""
