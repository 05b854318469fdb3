"""Rules for the history of a finished run, beside its replay: what the engines' tests and chaos hold every run to."""
