"""Note which fields of its events a policy reads to make its decisions.

The checker gives each field in NOTED only one value, and a record may lack the field. So the checker and the replay of
a record must know whether a decision depends on such a field.
"""

from __future__ import annotations

from typing import Any

from pslab.protocol.messages import Asked, Left, Pushed

NOTED = ("now", "loss")  #: fields of events that the checker does not vary


def _noting(kind: Any) -> Any:
    """Return a subclass of an event's class that adds the name of a field in NOTED to `read` when it is read."""

    def field(name: str) -> property:
        at = kind._fields.index(name)

        def read(event: Any) -> Any:
            event.read.add(name)
            return event[at]

        return property(read)

    noted = {name: field(name) for name in NOTED if name in kind._fields}
    return type(kind.__name__, (kind,), {**noted, "read": set[str]()})  # this `read` serves copies (_replace) only


_KINDS = {kind: _noting(kind) for kind in (Asked, Pushed, Left)}


def noting(event: Any, read: set[str]) -> Any:
    """Return a copy of the event that adds the name of a field in NOTED to `read` when the field is read."""
    noted = _KINDS[type(event)](*event)
    noted.read = read
    return noted


class NotingPolicy:
    """Wraps a policy; `read` collects the names of the fields in NOTED that the policy reads."""

    def __init__(self, sync: Any) -> None:
        self._sync, self.read = sync, set[str]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sync, name)

    def __repr__(self) -> str:
        return repr(self._sync)

    def step(self, state: Any, event: Any, clocks: Any) -> Any:
        """Return the policy's next state and its decisions."""
        return self._sync.step(state, noting(event, self.read), clocks)
