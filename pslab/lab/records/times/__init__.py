"""Who did what when, read from a record."""
