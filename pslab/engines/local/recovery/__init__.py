"""How a run on real processes survives the death of one of them.

- `server_state.py`: what a server keeps of itself, its part of a checkpoint, and goes on from.
- `checkpoints.py`: the parent's newest checkpoint of which all parts are there, and the copy of it on the disk.
- `replacing.py`: new processes in the places of those that have ended, of a worker or of all.
- `phase_tables.py`: what each life of a worker has written of its phases.

`pslab/engines/processes/watch.py` says which process is dead, and `pslab/engines/local/liveness.py` which workers a
run still has. A worker keeps its state for its successor in `pslab/engines/worker/state.py`. Objects become the bytes
and files of a checkpoint, of virtual runs too, in `pslab/engines/experiment/checkpoint`.
"""
