"""Spawned processes of this machine, in any role."""
