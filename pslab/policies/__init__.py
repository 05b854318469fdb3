"""Pure rules, one page each: synchronization, learning rates, request orders, partitions, schedules."""
