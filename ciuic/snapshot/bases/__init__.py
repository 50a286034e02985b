"""Finding delta bases for new chunks."""
