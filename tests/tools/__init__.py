"""Tools of pslab's developers, which only a checkout has: benchmarks, and campaigns of random runs."""
