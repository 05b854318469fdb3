"""What is done with finished records: shown as a timeline, verified, exported."""
