"""What the numbers of a record must be."""
