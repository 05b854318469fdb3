"""What workers make of several gradients between two exchanges, and what the server makes of their pushes."""
