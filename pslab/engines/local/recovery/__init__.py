"""How a run on real processes survives the death of one of them.

- `pslab/engines/worker/state.py`: a worker's state is stored in shared memory, so that a new process can continue.
- `restartable_run.py`: the parent of such a run. It is loaded only if processes are replaced.
- `replacing.py`: the parent spawns a new process for one that has ended. If a server has ended, all processes start
  again from the newest checkpoint.
- `server_state.py`: each server sends its part of a checkpoint to the parent, and a new server continues from it. The
  part has the weights; a replay of the arrivals restores the state machine, the policy and the accounts
  (`pslab/engines/server/replay.py`).
- `checkpoints.py`: the parent stores the newest complete checkpoint in its memory, and writes it to the disk with
  `pslab/engines/experiment/checkpoint`.

Which processes are dead is decided in `pslab/engines/processes/watch.py` and `pslab/engines/local/liveness.py`.
"""
