"""Start processes that share memory and are connected by pipes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from multiprocessing.reduction import send_handle
from typing import Any

from pslab.engines.processes import child
from pslab.engines.processes.child import SERVER, name
from pslab.engines.processes.spawn import context, spawning

Started = tuple[int, Any, Any]  # a process's number, its handle, and the pipe to it


class Starter:
    """Starts processes; each process, except the server, has a pipe to the server.

    Args:
        count: the largest number of processes at a time.
    """

    def __init__(self, count: int) -> None:
        self._context = context(count)
        self._lines: dict[int, Connection] = {}  # the server's ends of pipes that were not sent yet

    def start(self, memory: Mapping[int, child.Memory]) -> Iterator[Started]:
        """Start processes with these numbers and this memory; yield each process after its start.

        If the server is not among them, call `hand` to connect a new process to the running server.
        """
        with contextlib.ExitStack() as theirs, spawning():
            lines: dict[int, list[Connection]] = {SERVER: []} if SERVER in memory else {}
            for number in sorted(memory.keys() - {SERVER}):
                here, there = self._context.Pipe()
                lines[number] = [theirs.enter_context(there)]
                if SERVER in memory:
                    lines[SERVER].append(theirs.enter_context(here))
                else:
                    self._lines[number] = here
            for number, ends in lines.items():
                yield self._start(number, ends, memory[number])

    def _start(self, number: int, lines: Sequence[Connection], memory: child.Memory) -> Started:
        here, there = self._context.Pipe()
        try:
            with there:
                context = child.ProcessContext(number, there, list(lines), *memory)
                process = self._context.Process(target=child.main, args=(context,), name=f"pslab-{name(number)}",
                                                daemon=True)  # fmt: skip
                process.start()
        except BaseException:
            here.close()
            raise
        return number, process, here

    def hand(self, number: int, server: Connection, process: int) -> None:
        """Send the server, whose PID is `process`, its end of the pipe to a new process."""
        with self._lines.pop(number) as line:
            send_handle(server, line.fileno(), process)

    def forget(self, number: int) -> None:
        """Close the pipe to a process that has ended before `hand` was called for it."""
        if number in self._lines:
            self._lines.pop(number).close()

    def close(self) -> None:
        """Close the pipes for which `hand` was not called."""
        for number in list(self._lines):
            self.forget(number)
