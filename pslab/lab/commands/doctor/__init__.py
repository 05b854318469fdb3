"""What is well here or on the hosts of a cluster, what is not, and what to do about it."""
