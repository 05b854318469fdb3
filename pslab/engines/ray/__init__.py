"""Real processes on the hosts of a Ray cluster.

    engine.py    the caller's process: it starts the actors, follows the run, replaces workers, evaluates
    actors.py    the actors of this process, spread over the hosts; they serve one run after another
    server.py    the server that decides, an actor with the server's driver; the actors of the other servers
    worker.py    a worker, an actor with the worker's driver
    contents.py  the tensors that a message names: an actor's memory on one side, Ray's object store on the other

A worker calls `exchange` of the server that decides, with its messages and the numbers that they name; the call
returns as soon as there are messages for the worker, with theirs. So a push, the pull behind it, and the weights are
one call. Arrays from INLINE_BYTES on lie in Ray's object store, and travel from there straight to the actor that reads
them: a server that decides hands on references to the numbers of other servers.
"""
