"""Tables of a report as columns, by what they hold."""
