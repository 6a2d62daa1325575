"""In-process tracking of torch operations: identity, time, memory."""
