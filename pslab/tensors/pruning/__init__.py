"""Which entries of a gradient are sent, and what becomes of the rest."""
