"""Data sets by name, a page each: files that are read, and rows that are found or drawn."""
