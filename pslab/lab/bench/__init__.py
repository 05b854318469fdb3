"""python -m pslab bench: speed as ratios to limits and peers that are measured in the same call."""
