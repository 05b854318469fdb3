"""Figures drawn from records."""
