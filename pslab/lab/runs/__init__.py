"""Runs and sweeps: resolved, executed, measured."""
