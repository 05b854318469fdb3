"""What a parameter server does, whatever the clock."""
