"""The local engine: real processes in wall-clock time."""
