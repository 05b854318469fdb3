"""Benchmarks: the speed of pslab, compared with limits and peers that are measured in the same run."""
