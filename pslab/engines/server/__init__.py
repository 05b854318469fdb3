"""The parameter server, on any clock."""
