"""Drivers of the one protocol: local processes, virtual time, exhaustive checking."""
