"""What every engine is given: the experiment, its memory layout, its messages."""
