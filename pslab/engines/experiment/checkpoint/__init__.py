"""A run's checkpoints: facts and tensors by name, on disk, from which the same run goes on.

A checkpoint has no object: the state machines, the policy and the accounts of a server are made again by a replay of
the arrivals that it has dealt with (pslab/engines/server/replay.py). What a replay cannot make is saved: the number of
arrivals, and tensors.

- `file.py`: a checkpoint as bytes, by `torch.save`, and back: `pack(facts, tensors)`, `unpack(bytes)`.
- `store.py`: the last two of a run on disk: `CheckpointStore.write(facts, tensors)`, `newest()`.
- `checkpointing.py`: in a run, when one is due, and what the run says of it.
"""
