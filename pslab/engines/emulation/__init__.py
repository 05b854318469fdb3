"""The modelled cluster: compute times, links and queues."""
