"""The version of this package, which also one that was never installed knows."""

__version__ = "0.1.0"
