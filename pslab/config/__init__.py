"""An experiment as plain values: the run, its cluster, and names that become objects."""
