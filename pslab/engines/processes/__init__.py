"""Spawned processes of this machine, whatever their role."""
