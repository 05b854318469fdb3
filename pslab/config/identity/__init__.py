"""What the name of a run's results stands for: the content of its objects, and the files they come from."""
