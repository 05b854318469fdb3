"""A run's state as bytes: what a resumed run goes on from."""
