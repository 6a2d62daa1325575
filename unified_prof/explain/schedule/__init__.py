"""Schedule of a recorded run: dependencies between tasks and calls, critical path, and replay."""
