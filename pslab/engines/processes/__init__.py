"""Spawned processes on this machine, in any role, and the parent's part in a run with them."""
