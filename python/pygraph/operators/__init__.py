"""What is known of operators, and which of them stand in the way of a capture."""
