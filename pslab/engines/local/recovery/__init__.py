"""How a run on real processes goes on when one ends: new processes, and a server that begins at a checkpoint."""
