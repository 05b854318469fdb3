"""Which policy suits a cluster: candidates, the race between them, and how sure its answer is."""
