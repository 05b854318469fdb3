"""Searches that policies plan with: barriers, request graphs, range sizes."""
