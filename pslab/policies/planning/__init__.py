"""Searches by which policies plan: barriers, orders of receives, range sizes."""
