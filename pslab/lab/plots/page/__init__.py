"""A page of panels: axes, curves, the names beside or under them, and where everything lies."""
