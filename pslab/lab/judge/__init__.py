"""Whether a finished run follows from its arrivals, by the protocol and the policy; and a run's tables."""
