"""The input of every engine: the experiment, its memory layout, its messages."""
