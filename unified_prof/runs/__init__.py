"""One run as plain records: what it is asked to do, what it brings back."""
