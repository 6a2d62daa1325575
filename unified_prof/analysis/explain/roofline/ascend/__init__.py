"""What the operators of an Ascend cost, told by their types, shapes and formats."""
