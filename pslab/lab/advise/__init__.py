"""The best policy for a cluster: the search, the reasons of its answer, and the map of clusters."""
