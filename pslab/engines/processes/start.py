"""Processes of this machine that share memory, and pipes between them."""

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
    """Start processes, each but the server with a line to it: a socket pair.

    Args:
        count: how many of them there are, at most, at a time.
    """

    def __init__(self, count: int) -> None:
        self._context = context(count)
        self._lines: dict[int, Connection] = {}  # the server's ends of lines that it does not have yet

    def start(self, memory: Mapping[int, child.Memory]) -> Iterator[Started]:
        """Start processes with these numbers and this memory, each as soon as it is there. Those but the server have a
        line to it; if it is not among them it gets its ends when they are handed to it."""
        with contextlib.ExitStack() as theirs, spawning():
            lines: dict[int, list[Connection]] = {SERVER: []} if SERVER in memory else {}
            for number in sorted(memory.keys() - {SERVER}):
                here, there = self._context.Pipe()
                lines[number] = [theirs.enter_context(there)]
                if SERVER in memory:
                    lines[SERVER].append(theirs.enter_context(here))
                else:
                    self._lines[number] = here
            for number, own in lines.items():
                yield self._start(number, own, memory[number])

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
        """Give the server its end of a new process's line."""
        with self._lines.pop(number) as line:
            send_handle(server, line.fileno(), process)

    def forget(self, number: int) -> None:
        """Forget a process that is gone, and its line."""
        if number in self._lines:
            self._lines.pop(number).close()

    def close(self) -> None:
        """Give everything back."""
        for number in list(self._lines):
            self.forget(number)
