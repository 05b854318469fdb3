"""How messages travel between the processes of a run, and when an emulated cluster delivers them.

- `stream.py`: a stream of frames over a socket pair, both ways; what is no frame ends it with words.
- `ends.py`: which process has a stream to which other one, and which messages may come on it.
- `emulated_links.py`: a frame is handed on when the links of `pslab/engines/emulation` would deliver it.

`pslab/engines/experiment/wire.py` says what a message is, `pslab/tensors/compression/frame.py` how a gradient becomes
bytes, and `pslab/engines/experiment/layout.py` where tensors lie. Orders and reports between the parent and its
children go another way: `pslab/engines/processes/channel.py`.
"""
