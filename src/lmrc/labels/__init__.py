"""Label vectors."""
