"""The model checker: every order of events in a small cluster."""
