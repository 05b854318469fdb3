"""Whether a finished run's history obeys the protocol and its policy."""
