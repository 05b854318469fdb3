"""Random runs with random faults, which an audit and sequential replays hold to what must be."""
