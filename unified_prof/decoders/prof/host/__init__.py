"""What the host recorded: calls, launches, operators and their tensors, captures, copies, marks."""
