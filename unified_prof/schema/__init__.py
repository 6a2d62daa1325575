"""The on-disk schemas as SQLAlchemy models, and their frozen text."""
