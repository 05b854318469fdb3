"""Selection of the entries of a gradient: compiled loops for the CPU, and the reference in plain torch."""
