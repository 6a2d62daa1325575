"""What torch's operations cost: formulas by name, a module for each family of operations."""
