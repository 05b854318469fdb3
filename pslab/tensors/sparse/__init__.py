"""Rows that hold few of many keys, and where they come from."""
