"""Which task is meant: its stream, its id, the round of its ids, and its number in the database."""
