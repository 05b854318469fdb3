"""The live view: runs under way, in a notebook."""
