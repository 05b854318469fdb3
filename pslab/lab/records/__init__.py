"""Records on disk, and the values that are read from them."""
