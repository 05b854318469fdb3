"""The virtual engine: real gradients, or none, in reproducible virtual time."""
