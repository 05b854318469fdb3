"""Time is emulated here: what a cluster says of compute times, links and faults, for every engine.

A `Cluster` (`pslab/config/cluster.py`) holds the figures. These pages turn them into durations and instants; none of
them reads a clock:

- `compute_times.py`: how long each gradient of each worker takes, drawn from the run's seeded streams.
- `layer_progress.py`: when each layer of a layered worker computes.
- `links.py`: how long messages travel, each worker's link and the servers' shared ones as fluids.
- `link_queue.py`: which waiting message goes next between a worker and a server, by the run's request order.
- `traffic.py`: what a frame of messages is on these links.
- `faults.py`: which process stops, which message is dropped or delayed, and when.

On real processes (`pslab/engines/local`) the clock is real: `worker.py` holds a worker until its emulated computation
would end, `lines/emulated_links.py` holds a frame back until its links would deliver it, and `pace.py` makes all of it
slower by one factor (the dilation) where this machine cannot keep up, and says whether the emulation was kept.

In virtual time (`pslab/engines/virtual`) the clock is the instant of the current event: `scheduler.py` takes the events
and the links' arrivals in their order, `worker_node.py` adds compute times, `server_node.py` the costs of servers.
"""
