"""How bytes travel between the processes of a run, and when an emulated cluster delivers them.

- `stream.py`: a stream of frames over a pipe or a socket, both ways; what is no frame ends it with words.
- `ends.py`: which process has a stream to which other one, and which messages may come on it.
- `message_buffers.py`: where memory is not shared, the bytes that a message names travel behind it.
- `frame_assembly.py`: with several servers and no shared memory, each message goes to the server of its range.
- `emulated_links.py`: a frame is handed on when the links of `pslab/engines/emulation` would deliver it.

`pslab/engines/experiment/wire.py` says what a message is, `pslab/tensors/compression/frame.py` how a gradient becomes
bytes, and `pslab/engines/experiment/layout.py` where tensors lie. Orders and reports between the parent and its
children go another way: `pslab/engines/processes/channel.py`. `pslab/engines/processes/fleets` opens the sockets
between hosts.
"""
