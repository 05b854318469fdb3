"""Data sets by name, one per file: read from files, taken from the interpreter's library, or drawn at random."""
