"""Real processes on the hosts of a Ray cluster.

    engine.py    the caller's process: it starts the actors, follows the run, replaces workers, evaluates
    actors.py    the actors of this process, spread over the hosts; they serve one run after another
    server.py    the deciding server, an actor with the server's driver; the actors of the other servers
    worker.py    a worker, an actor with the worker's driver
    contents.py  the arrays of a message, which travel from one actor's memory to another's

A worker calls `exchange` of the deciding server with its messages and their arrays; the call returns as soon as there
are messages for the worker. So a push, the pull after it, and the reply with weights are one call. Arrays of
INLINE_BYTES or more lie in Ray's object store, which sends them straight to the actor that reads them: the deciding
server passes the arrays of other servers' ranges on as references.
"""
