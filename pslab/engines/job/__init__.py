"""What every driver is given: the experiment, its memory layout, its messages."""
