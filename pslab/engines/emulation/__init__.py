"""Emulated time: a cluster's compute times, link delays and faults, computed in the same way for every engine.

The parameters are fields of `Cluster` (`pslab/config/cluster.py`). The modules here turn them into durations and
instants, and none of them reads a clock:

- `compute_times.py`: how long each gradient of each worker takes, drawn from the run's seeded streams.
- `layer_progress.py`: when a layered worker computes each layer.
- `links.py`: how long messages travel over the workers' and servers' links, which are shared like fluids.
- `link_queue.py`: which waiting message is sent next between a worker and a server, by the run's request order.
- `traffic.py`: how a frame of messages is sent over these links: in which parts, and with how many bytes.
- `faults.py`: which process stops, which message is dropped or delayed, and when.

On real processes (`pslab/engines/local`) the clock is real. `worker.py` lets a worker wait until its emulated
computation would end, and `lines/emulated_links.py` delays a frame until its links would deliver it. `pace.py` runs
everything slower by one factor (the dilation) if this machine is too slow, and tells whether the emulation was exact.

In virtual time (`pslab/engines/virtual`) the clock is the instant of the current event. `scheduler.py` processes events
and the links' arrivals in order, `worker_node.py` adds compute times, and `server_node.py` adds the costs of servers.
"""
