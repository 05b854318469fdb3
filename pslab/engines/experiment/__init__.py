"""The input and output of every engine: the experiment and its outcome, the layout of its memory, its messages."""
