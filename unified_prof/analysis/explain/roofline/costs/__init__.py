"""What operations have to do, told by shapes and types alone; who asked does not matter."""
