"""Performance counters of AI cores, by task and by interval, and the metrics made of them."""
