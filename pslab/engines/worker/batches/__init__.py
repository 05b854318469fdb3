"""Which examples a worker takes at each iteration, and which keys they hold."""
