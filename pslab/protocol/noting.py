"""A policy that is asked for its decisions, and which facts of its events it reads to make them.

The checker gives each fact in NOTED one value, and a record may lack it: both ask whether a decision depends on it.
"""

from __future__ import annotations

from typing import Any

from pslab.protocol.messages import Asked, Left, Pushed

NOTED = ("now", "loss")  #: fields of events that the checker does not vary


def _noting(kind: Any) -> Any:
    """A kind of event that adds the names of the fields in NOTED to its `read` as they are read."""

    def field(name: str) -> property:
        at = kind._fields.index(name)

        def read(event: Any) -> Any:
            event.read.add(name)
            return event[at]

        return property(read)

    noted = {name: field(name) for name in NOTED if name in kind._fields}
    return type(kind.__name__, (kind,), {**noted, "read": set[str]()})  # of a copy: nobody asks which fields were read


_KINDS = {kind: _noting(kind) for kind in (Asked, Pushed, Left)}


def noting(event: Any, read: set[str]) -> Any:
    """The same event, which adds to `read` the names of the fields in NOTED that a policy reads."""
    noted = _KINDS[type(event)](*event)
    noted.read = read
    return noted


class NotingPolicy:
    """A policy whose events note the fields that it reads, in `read`."""

    def __init__(self, sync: Any) -> None:
        self._sync, self.read = sync, set[str]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sync, name)

    def __repr__(self) -> str:
        return repr(self._sync)

    def step(self, state: Any, event: Any, clocks: Any) -> Any:
        """The policy's answer."""
        return self._sync.step(state, noting(event, self.read), clocks)
