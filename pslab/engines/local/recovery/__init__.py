"""How a run on real processes survives the end of one of them.

- `pslab/engines/worker/state.py`: what a worker keeps lies in shared memory, so that its successor goes on from there.
- `replacing.py`: the parent spawns a process in the place of one that has ended; if that was a server, all processes
  begin again at the newest checkpoint.
- `server_state.py`: each server sends its part of a checkpoint to the parent, and a new server goes on from it: the
  weights are in the part, and the state machine, the policy and the accounts are made by a replay of the arrivals
  (`pslab/engines/server/replay.py`).
- `checkpoints.py`: the parent has the newest checkpoint with every part in its memory, and writes it to the disk by
  `pslab/engines/experiment/checkpoint`.

Which processes are dead is decided in `pslab/engines/processes/watch.py` and `pslab/engines/local/liveness.py`.
"""
