"""How bytes travel between the processes of a run, and when an emulated cluster delivers them.

A gradient goes from its worker to the server that decides in these steps:

1. `WorkerDriver.computed` hands a frame of messages to a `Stream` (ends: which streams a process has). Where memory is
   shared the numbers lie in the run's arena, and the messages name their places; elsewhere `MessageBuffers` says which
   bytes a message names, and the stream sends them behind it, from where they lie to where they belong.
2. With several servers and without shared memory each server gets the numbers of its ranges (frame_assembly).
3. The server's process hands the frame to `EmulatedLinks`, which lets it arrive when the links of the cluster would.
4. `ServerDriver.receive` deals with it. Orders to other servers go over streams of their own (remote_store, store).

Weights come back the same way. Processes hear from their parent, and report to it, by pipes (processes.channel); where
memory is not shared, those carry the changes of the arenas (processes.fleets.private_memory).
"""
