"""Schemas of report files: SQLAlchemy models, and the frozen SQL text of each revision."""
