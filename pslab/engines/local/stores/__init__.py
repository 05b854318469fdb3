"""Servers that do not decide, each a process of its own: its role, its orders, and its line."""
