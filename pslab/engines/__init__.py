"""Engines that run the one protocol: local processes, virtual time, exhaustive checking."""
