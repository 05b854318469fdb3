"""A worker on any clock: its driver, its tensors and gradients, and the phases that it logs."""
