"""Helpers that several notebooks share: the batch, parameters, figures, claims, observations."""
