"""Kernels that select the entries of a gradient: compiled for the CPU, and the plain torch reference."""
