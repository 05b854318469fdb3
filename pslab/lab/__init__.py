"""What a person touches: runs, records, plots, notebooks, the command line."""
