"""Synchronization policies: when a worker may start its next iteration, and when a push is applied."""
