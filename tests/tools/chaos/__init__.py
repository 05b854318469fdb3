"""Random runs with random faults, which the judge and sequential replays hold to what must be."""
