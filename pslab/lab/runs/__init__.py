"""The resolution, execution and measurement of runs and sweeps."""
