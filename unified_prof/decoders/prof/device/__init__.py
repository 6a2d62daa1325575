"""What the device logged of its tasks, joined with what launched them."""
