"""What a worker does, whatever the clock."""
