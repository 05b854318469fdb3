"""The protocol as pure state machines: events in, effects out, without clocks, sockets, chance or tensors."""
