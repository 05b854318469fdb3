"""Records on disk, and the tables and measures that are read from them."""
