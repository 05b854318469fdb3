"""Random runs with random faults, whose invariants an audit and sequential replays check."""
