"""Lines between the server and its workers, and when an emulated cluster delivers what travels on them."""
