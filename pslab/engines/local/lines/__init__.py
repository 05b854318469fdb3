"""How messages are sent between the processes of a run, and when an emulated cluster delivers them.

- `stream.py`: a stream of frames over a socket pair, in both directions; invalid bytes end it with an error.
- `ends.py`: the streams between the processes of a run, and the messages that may come on each.
- `emulated_links.py`: delivers a frame when the links of `pslab/engines/emulation` would deliver it.

`pslab/engines/experiment/wire.py` defines the messages, `pslab/tensors/compression/frame.py` the encoding of gradients,
and `pslab/engines/experiment/layout.py` the offsets of tensors in shared memory. Orders and reports between the parent
and its children use another channel: `pslab/engines/processes/channel.py`.
"""
