"""The protocol, pure: events in, effects out. No sockets, clocks, chance or tensors; payloads are references."""
