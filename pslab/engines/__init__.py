"""Engines that run the same protocol: real processes, virtual time, exhaustive checking."""
