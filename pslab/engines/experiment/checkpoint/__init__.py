"""A run's checkpoints on disk, from which the same run can continue: facts and tensors by name.

A checkpoint has no Python objects. A replay of the arrivals that the server has processed restores the state machines,
the policy and the accounts (pslab/engines/server/replay.py). A checkpoint has the number of arrivals, and the tensors
that a replay cannot restore.

- `file.py`: encodes a checkpoint as bytes with `torch.save`, and decodes it: `pack(facts, tensors)`, `unpack(bytes)`.
- `store.py`: stores the last two checkpoints of a run: `CheckpointStore.write(facts, tensors)`, `newest()`.
- `checkpointing.py`: decides in a run when a checkpoint is due, and reports what happens.
"""
